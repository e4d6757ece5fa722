// SPDX-License-Identifier: Apache-2.0

package converge

// WithHead is the file that keeps a spec.
func WithHead(text string) string { return string(withHead([]byte(text))) }
