// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// stdout is standard output. It keeps the first error, since most of what prints does not look at
// it: a file that holds half an answer must not look like a whole one.
type stdout struct {
	io.Writer
	err error
}

// Write treats a reader that has closed its end as a reader that has read enough: gpuadm
// facts | head.
func (o *stdout) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if errors.Is(err, syscall.EPIPE) {
		return len(text), nil
	}
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// or returns a command's error, or that its answer is lost: then it is not even a failed answer, as
// that of status.
func (o *stdout) or(err error) error {
	var answered exit
	if o.err == nil || err != nil && !errors.As(err, &answered) && !errors.Is(err, o.err) {
		return err
	}
	return fmt.Errorf("cannot write the answer to standard output: %w", o.err)
}
