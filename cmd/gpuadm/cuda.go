// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/host"
)

// newStartCUDA is the verb by which gpuadm starts itself. Typed by hand it prints the same answer.
func newStartCUDA(*common) *cobra.Command {
	return &cobra.Command{
		Use:    host.CUDAVerb,
		Short:  "start CUDA in this process and print what it answers",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return host.StartCUDA(strings.Join(args, "")) },
	}
}
