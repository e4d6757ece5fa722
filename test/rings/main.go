// SPDX-License-Identifier: Apache-2.0

// Command rings decides which of the slow tests a change asks for, and runs all of them at night.
//
//	rings race         packages for the race detector
//	rings staticcheck  changed packages, and those that import them
//	rings targets      targets of the Makefile whose inputs changed
//	rings lab          the pattern of lab tests: the smoke, and what shows the change
//	rings kube         the same for the lab with Kubernetes
//	rings green        remembers that all rings passed on HEAD
//	rings nightly      runs everything, and writes one page about it
//
// A change is what differs from the last commit on which all rings passed on this machine. Without
// such a record it is the work of the last day. BASE names another commit.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rings:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("name a ring: race, staticcheck, targets, lab, kube, green or nightly")
	}

	switch args[0] {
	case "green":
		return rememberGreen()
	case "nightly":
		return nightly(args[1:])
	}

	change, err := since()
	if err != nil {
		return err
	}
	switch args[0] {
	case "race", "staticcheck":
		packages, err := listPackages()
		if err != nil {
			return err
		}
		words := affected(packages, change.files, args[0] == "race")
		if args[0] == "race" {
			words = only(words, raced)
		}
		fmt.Println(strings.Join(words, " "))
		return nil
	case "targets", "lab", "kube":
		rows, err := readTable()
		if err != nil {
			return err
		}
		return printChosen(rows, args[0], change)
	}

	return fmt.Errorf("there is no ring %q", args[0])
}

// printChosen writes what a ring runs to stdout, and why to stderr.
func printChosen(rows []row, ring string, change change) error {
	picked := choose(rows, ring, change.files, turn())
	fmt.Fprintf(os.Stderr, "%s: %s; %d for the smoke, %d for the change\n", ring, change.base, len(picked.smoke), len(picked.shown))
	if len(picked.left) > 0 {
		fmt.Fprintf(os.Stderr, "%s: left to make nightly, since %d s are enough for a change: %s\n",
			ring, budgets[ring], strings.Join(picked.left, " "))
	}

	names := append(picked.smoke, picked.shown...)
	if ring == "targets" {
		fmt.Println(strings.Join(names, " "))
	} else {
		fmt.Printf("^(%s)$\n", strings.Join(names, "|"))
	}

	return nil
}

// turn is another number in each run of .ci/run, so that what a budget leaves out comes later.
func turn() int {
	number, err := strconv.Atoi(os.Getenv("GPUADM_TURN"))
	if err != nil {
		return 0
	}
	return number
}
