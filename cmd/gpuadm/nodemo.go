// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

//go:build !demo

package main

import "github.com/spf13/cobra"

// demoVerbs is empty: a program that runs as root on real machines ships no simulated one.
func demoVerbs(*common) []*cobra.Command { return nil }
