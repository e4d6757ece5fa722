// SPDX-License-Identifier: Apache-2.0

package converge

import "github.com/gpuadm/gpuadm/internal/host"

// WithHead is the file that keeps a spec.
func WithHead(text string) string { return string(withHead([]byte(text))) }

// Compact rewrites a journal that has grown.
func Compact(j *Journal, h host.Host) { j.compact(h) }
