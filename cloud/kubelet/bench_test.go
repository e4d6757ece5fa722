// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// BenchmarkTakeOut takes gpuadm's word out of files of 1,000 and 10,000 lines: the time per line
// has to be the same.
func BenchmarkTakeOut(b *testing.B) {
	const word = "--node-labels=pool=gpu"
	for name, line := range map[string]string{
		"one variable":       "KUBELET_EXTRA_ARGS=\"--v=2 " + word + "\"\n",
		"many variables":     "VARIABLE_%d=\"--v=2\"\n",
		"one of many labels": "",
	} {
		for _, lines := range []int{1000, 10_000} {
			before := file(line, lines)
			after := must.Get(withWord(before, extraArgs, word))(b)
			found := append([]byte("# by an operator\n"), after...)

			b.Run(fmt.Sprintf("%s/%d", name, lines), func(b *testing.B) {
				for b.Loop() {
					rest, left, err := TakeOut(before, after, found)
					must.That(b, err == nil && len(left) == 0 && len(rest) == len(found)-len(word)-1, "%d bytes, left %q, %v", len(rest), left, err)
				}

				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(lines), "ns/line")
			})
		}
	}
}

// file has so many lines; without a line one variable has so many labels.
func file(line string, lines int) []byte {
	var text strings.Builder
	for i := range lines {
		text.WriteString(strings.ReplaceAll(line, "%d", fmt.Sprint(i)))
	}

	var labels []string
	for i := range lines {
		if line == "" {
			labels = append(labels, fmt.Sprintf("--node-labels=label-%d=b", i))
		}
	}

	return fmt.Appendf(nil, "%s%s=\"--v=3 %s\"\n", text.String(), extraArgs, strings.Join(labels, " "))
}
