// SPDX-License-Identifier: Apache-2.0

package mask_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// plant is one secret or more as a file holds them.
type plant struct {
	file, source, text string
	secrets            []string
}

func planted(t testing.TB) (all []plant) {
	t.Helper()
	data := must.Get(os.ReadFile("testdata/planted.txt"))(t)
	between := regexp.MustCompile(`(?s)«(.*?)»`)
	for _, part := range strings.Split(string(data), "\n== ")[1:] {
		head, text, _ := strings.Cut(part, "\n")
		file, source, _ := strings.Cut(head, "  ")
		p := plant{
			file:   file,
			source: source,
			text:   strings.NewReplacer("«", "", "»", "").Replace(text),
		}
		for _, m := range between.FindAllStringSubmatch(text, -1) {
			for _, line := range strings.Split(m[1], "\n") {
				p.secrets = append(p.secrets, strings.Fields(line)...)
			}
		}

		must.That(t, len(p.secrets) > 0, "nothing is planted in %s", head)
		all = append(all, p)
	}

	return all
}

// No secret of the corpus is left, in whatever text it comes.
func TestPlanted(t *testing.T) {
	all := planted(t)
	check.That(t, len(all) >= 100, "only %d secrets are planted", len(all))
	for _, p := range all {
		for name, text := range map[string]string{
			"alone": p.text, "with carriage returns": strings.ReplaceAll(p.text, "\n", "\r\n"), "without an end": strings.TrimSuffix(p.text, "\n"),
			"below": "a: 1\nb = 2\n# it's a comment\n" + p.text, "above": p.text + "\nafter = 1\n",
		} {
			masked := string(mask.File(p.file, []byte(text)))
			for _, s := range p.secrets {
				check.That(t, len(s) <= 3 || !strings.Contains(masked, s), "%s, %s, %s: %s is left:\n%s", p.file, p.source, name, s, masked)
			}
			check.Equal(t, string(mask.File(p.file, []byte(masked))), masked, "%s, %s, %s: masked twice it is another text:\n%s", p.file, p.source, name, masked)
		}
	}
}

// TestKernelHeaders: sentences about a kernel's headers are what an administrator needs at night.
func TestKernelHeaders(t *testing.T) {
	for _, text := range []string{
		"these kernels have headers: 5.14.0-2.el9.x86_64", "linux-headers: 6.8.0-41-generic", "kernel headers = 5.14.0-2.el9.x86_64",
	} {
		check.Equal(t, mask.Message(text), text, "%q becomes", text)
	}
}
