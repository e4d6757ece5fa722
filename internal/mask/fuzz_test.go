// SPDX-License-Identifier: Apache-2.0

package mask_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/test/alloc"
)

func FuzzMask(f *testing.F) {
	for _, p := range planted(f) {
		f.Add(p.file, p.text)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		var once string
		alloc.Beside(t, 4<<20, 10000, len(text), func() {
			once = string(mask.File(name, []byte(text)))
		})
		if again := string(mask.File(name, []byte(once))); again != once {
			t.Errorf("a file masked twice is another:\n%q\n%q\n%q", text, once, again)
		}
		said := mask.Message(text)
		if again := mask.Message(said); again != said {
			t.Errorf("a message masked twice is another:\n%q\n%q\n%q", text, said, again)
		}
		// A value of one byte grows to the mark.
		if most := len(mask.Mark)*len(text) + 64; len(once) > most || len(said) > most {
			t.Errorf("%d bytes become %d and %d", len(text), len(once), len(said))
		}
	})
}

// Masking is linear in the text, whatever the text is: twice the text allocates twice as much, and
// a quadratic search would take the test's ten minutes for texts of this size.
func TestMaskIsLinear(t *testing.T) {
	for _, unit := range []string{
		"password=x ", "token: abc\n", `"`, " '", `\"`, "secret: [[[", "[", "http://a@b?c ", "://", "http://a:/@", "-----BEGIN ", "-----END ", "-----END PRIVATE KEY-----", "-----BEGIN CERTIFICATE",
		"Environment=A=1 \\\n", "token:", "a:", "name:", "a", "=", " ", "value: ", "--token ", `"a\"`, "aB", ";", "; ", "; a", `--token "\`, `token "`, "key:/etc/:", "- ", "'''", `"":`, "{a:", "token:\n",
	} {
		cost := func(bytes int) uint64 {
			text := strings.Repeat(unit, bytes/len(unit))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			mask.Text([]byte(text))
			mask.Message(text)
			mask.Text([]byte("ExecStart=" + text))
			mask.File("/etc/environment", []byte(text))
			runtime.ReadMemStats(&after)
			return after.TotalAlloc - before.TotalAlloc
		}

		if once, twice := cost(32<<10), cost(64<<10); twice > 3*once {
			t.Errorf("%q: %d bytes are allocated for a text, %d for twice of it", unit, once, twice)
		}
	}
}

func BenchmarkMask(b *testing.B) {
	var all []byte
	for _, f := range harmlessFiles(b) {
		all = append(all, f.Data...)
	}
	b.SetBytes(int64(len(all)))
	b.ReportAllocs()
	for b.Loop() {
		mask.Text(all)
	}
}
