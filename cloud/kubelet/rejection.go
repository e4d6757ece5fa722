// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Rejection is the answer of a kubelet that does not accept its command line.
type Rejection struct {
	Said  *host.CommandError
	Flag  string   // as the command line has it: --v=x; "" if kubelet names no flag of the command line
	Files []string // the files that have the flag
}

// Rejected runs kubelet with its command line and --version: kubelet has no dry run, and parses the
// command line before it prints its version. Rejected returns nil if kubelet accepts the command
// line, or if there is no kubelet to ask. It returns an error if kubelet gives no answer.
// Sources: NewKubeletCommand in cmd/kubelet/app/server.go of
// https://github.com/kubernetes/kubernetes (cleanFlagSet.Parse, then
// verflag.PrintAndExitIfRequested);
// https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/.
func Rejected(ctx context.Context, v host.View, k facts.Kubelet) (*Rejection, error) {
	if k.Binary == "" || len(k.Args) == 0 {
		return nil, nil
	}

	command := slices.Concat([]string{k.Binary}, k.Args, []string{"--version"})
	_, err := v.Ask(ctx, command...)
	var failed *host.CommandError
	switch {
	case err == nil, host.NotExist(err):
		return nil, nil
	case !errors.As(err, &failed), failed.Code <= 0:
		return nil, err
	}

	rejection := &Rejection{Said: failed}
	name := flagOf(failed.Stderr)
	if name == "" {
		return rejection, nil
	}
	for _, word := range k.Args {
		if hasFlag(word, name) {
			rejection.Flag = word
			break
		}
	}

	unit, _ := v.Unit(ctx, k.Unit)
	for _, file := range slices.Concat(unit.Files, k.Reads()) {
		text, _ := v.ReadFile(file)
		if hasFlag(string(text), name) {
			rejection.Files = append(rejection.Files, file)
		}
	}

	return rejection, nil
}

// hasFlag reports whether a text has a flag. A flag with a longer name that begins with this name
// does not count.
func hasFlag(text, name string) bool {
	_, after, found := strings.Cut(text, name)
	for found {
		if after == "" || strings.Contains(" \t\n=\"'\\", after[:1]) {
			return true
		}
		_, after, found = strings.Cut(after, name)
	}
	return false
}

// rejectedFlag finds the flag in pflag's errors: "unknown flag: --container-runtime", and `invalid
// argument "x" for "--v" flag`.
// Sources: flag.go of https://github.com/spf13/pflag;
// https://github.com/awslabs/amazon-eks-ami/issues/1398.
var rejectedFlag = pattern.Of(`unknown flag: (--[\w-]+)|invalid argument .* for \\?"(?:-\w, )?(--[\w-]+)\\?" flag`)

// flagOf returns the flag that an error of pflag names; "" if it names none.
func flagOf(stderr string) string {
	found := rejectedFlag().FindStringSubmatch(stderr)
	if found == nil {
		return ""
	}
	return found[1] + found[2]
}
