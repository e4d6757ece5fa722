// SPDX-License-Identifier: Apache-2.0

package mask_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "write testdata/falsely.txt again")

// harmlessFiles are configurations without a secret: containerd's of the table's corpus, all of the
// recorded machines, and examples.
func harmlessFiles(t testing.TB) []txtar.File {
	t.Helper()
	var all []txtar.File
	for _, pattern := range []string{"../../test/containerd/corpus/*.toml", "../../test/hosts/*.txtar", "testdata/harmless.txtar", "../../README.md", "../../images/systemd/*.service"} {
		names, err := filepath.Glob(pattern)
		must.That(t, err == nil && len(names) > 0, "%s: no files, %v", pattern, err)
		for _, name := range names {
			data := must.Get(os.ReadFile(name))(t)
			if path.Ext(name) != ".txtar" {
				all = append(all, txtar.File{Name: path.Base(name), Data: data})
				continue
			}
			for _, f := range txtar.Parse(data).Files {
				file, markers, _ := strings.Cut(f.Name, " ")
				if !strings.Contains(markers, "base64") {
					all = append(all, txtar.File{
						Name: strings.TrimSuffix(path.Base(name), ".txtar") + ":/" + file,
						Data: f.Data,
					})
				}
			}
		}
	}

	return all
}

// What holds no secret stays readable. The values that are masked all the same are listed in
// testdata/falsely.txt: a new one is a decision.
func TestMaskedFalsely(t *testing.T) {
	const most = 5
	var list []string
	values := 0
	for _, f := range harmlessFiles(t) {
		_, file, found := strings.Cut(f.Name, ":")
		if !found {
			file = "/etc/containerd/" + f.Name
		}
		before, after := strings.Split(string(f.Data), "\n"), strings.Split(string(mask.File(file, f.Data)), "\n")
		if len(before) != len(after) {
			t.Errorf("%s: %d lines become %d", f.Name, len(before), len(after))
			continue
		}
		for i := range before {
			values += strings.Count(before[i], "=") + strings.Count(before[i], ": ")
			if before[i] != after[i] {
				list = append(list, fmt.Sprintf("%s: %s", f.Name, strings.TrimSpace(after[i])))
			}
		}
	}

	slices.Sort(list)
	const golden = "testdata/falsely.txt"
	text := strings.Join(list, "\n") + "\n"
	if *update {
		must.OK(t, os.WriteFile(golden, []byte(text), 0o644))
	}
	known := must.Get(os.ReadFile(golden))(t)
	check.That(t, string(known) == text, "masked falsely:\n%s\nbut %s has\n%s", text, golden, known)
	check.That(t, len(list) <= most, "%d lines of %d values are masked falsely, %d may be", len(list), values, most)
	t.Logf("%d lines of about %d values", len(list), values)
}

// What gpuadm itself says of tokens, keys and logins is not masked.
func TestSentencesStay(t *testing.T) {
	n := 0
	for _, dir := range []string{"cloud", "cmd/gpuadm", "drivers", "internal/*", "mig", "runtime", "stages"} {
		names, err := filepath.Glob("../../" + dir + "/*.go")
		must.That(t, err == nil && len(names) > 0, "%s: no files, %v", dir, err)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/mask/") {
				continue
			}
			file := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
			ast.Inspect(file, func(node ast.Node) bool {
				lit, ok := node.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				// A signature's armour and a generated [repo] section are not sentences: a file of
				// them is masked as files are.
				if err != nil || strings.Count(text, " ") < 3 || strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, "PGP SIGNED") || strings.HasPrefix(text, "[%s.repo]") {
					return true
				}
				n++
				check.Equal(t, mask.Message(text), text, "%s: %q becomes", name, text)
				return true
			})
		}
	}

	check.That(t, n >= 1000, "only %d sentences", n)
}

// TestCodePoint: an error of TOML names a character behind the word key, which is not a secret.
func TestCodePoint(t *testing.T) {
	const text = "invalid character at start of key: U+005B '['"
	check.Equal(t, mask.Message(text), text, "got")
}

// TestTold: words of a sentence behind a secret's name stay.
func TestTold(t *testing.T) {
	for _, text := range []string{
		"the token is expired.", "the password is wrong", "no secret is named",
		"the token of the service account is not-valid", "# the password is in /etc/x/password",
		"the token file /var/lib/kubelet/token1", "token expired after 24h0m0s", "no token for gpu-1",
		"docker run --user 1000:1000 x", "--user nobody:nogroup", "nvidia-persistenced --user nvidia-persistenced",
		"the image is sha256:9f86d081884c7d65", "https://10.0.0.1:6443 k3s::server: started",
		"libnvidia-ml.so.580.95.05 of driver 580.95.05", "GPU-29689fa2-005b-bfbd-b7ad-94fde3bc2b16 at 0000:3a:00.0",
	} {
		check.Equal(t, mask.Message(text), text, "got")
	}
}
