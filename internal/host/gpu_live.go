// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"strings"
)

// ResetGPUs is Host's. All of them go in one call: GPUs joined by NVLink can only be reset together.
func (l *live) ResetGPUs(ctx context.Context, gpus ...string) error {
	if len(gpus) == 0 { // without -i nvidia-smi resets all there are
		return nil
	}
	keptOf(ctx).end() // what is open holds the GPUs, gpuadm's own session too
	output, err := l.Do(ctx, resetCommand(gpus)...)
	return withWords(err, output)
}

// withWords adds what a program said to its error if it said it in the wrong place: nvidia-smi refuses on standard output.
func withWords(err error, output []byte) error {
	failed := (*CommandError)(nil)
	if !errors.As(err, &failed) || failed.Stderr != "" {
		return err
	}
	var words tail
	_, _ = words.Write(output)
	detailed := *failed
	detailed.Stderr = words.String()
	return &detailed
}

// resetCommand is how nvidia-smi is asked to reset GPUs.
func resetCommand(gpus []string) []string {
	return []string{"nvidia-smi", "--gpu-reset", "-i", strings.Join(gpus, ",")}
}
