// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/remote"
)

// newServeSSH is the verb that gpuadm ssh runs on the other machine.
func newServeSSH(c *common) *cobra.Command {
	var job string
	cmd := &cobra.Command{
		Use:    "serve-ssh [FOLDER]",
		Short:  "answer gpuadm ssh, which runs this on the other machine",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := c.open("/")
			if err != nil {
				return err
			}
			if job != "" {
				return remote.Job(h, job, c.runRequest)
			}
			if code := remote.Serve(cmd.Context(), h, strings.Join(args, ""), c.stdin, c.stdout, c.runRequest); code != 0 {
				return exit(code)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&job, "job", "", "run the request in `FOLDER`, in a unit of its own")
	return cmd
}

// runRequest runs a command line that came over ssh. The files that came with it are read in place of this machine's.
func (c *common) runRequest(r remote.Request, stdout, stderr io.Writer, again func([]string) error) int {
	e := c.env
	e.stdin, e.stdout, e.stderr, e.restartSelf = bytes.NewReader(r.Stdin), stdout, stderr, nil
	e.read = func(name string) ([]byte, error) {
		if data, carried := r.Files[name]; carried {
			return data, nil
		}
		return c.read(name)
	}
	e.stat = func(name string) (fs.FileInfo, error) {
		if _, carried := r.Files[name]; carried {
			return nil, fs.ErrNotExist // the operator's file has its owner on the operator's machine
		}
		return os.Stat(name)
	}
	if again != nil {
		e.restartSelf = func(more ...string) error { return again(append(slices.Clone(r.Args), more...)) }
	}
	return run(context.Background(), e, r.Args)
}
