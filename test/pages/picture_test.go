// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "write docs/install.svg")

// TestPicture: the picture of README is made of the recording that `make lab-slow` writes.
func TestPicture(t *testing.T) {
	const name = "../../docs/install.svg"
	picture := must.Get(Picture(strings.NewReader(read(t, "../../docs/install.cast"))))(t)
	if *update {
		must.OK(t, os.WriteFile(name, []byte(picture), 0o644))
	}
	check.That(t, read(t, name) == picture,
		"%s is not what docs/install.cast shows: go test ./test/pages -run TestPicture -update", name)
}

// TestScreen: a line is written again after a carriage return, a wide one wraps, and the last rows
// are what is seen.
func TestScreen(t *testing.T) {
	s := newScreen()
	must.OK(t, s.write("one … two\r\x1b[2Kone \x1b[32m+\x1b[0m <two>\r\n"+strings.Repeat("x", columns)+"yz"))
	want := `<text y="29">one <tspan fill="#8ddb8c">+</tspan> &lt;two&gt;</text>` + "\n" +
		`<text y="46">` + strings.Repeat("x", columns) + "</text>\n" +
		`<text y="63">yz</text>` + "\n"
	check.Equal(t, s.shown(), want, "the screen:")

	must.OK(t, s.write(strings.Repeat("\r\nline", rows)))
	hasLastRows := strings.Count(s.shown(), "line") == rows && !strings.Contains(s.shown(), "yz")
	check.That(t, hasLastRows, "%s", s.shown())
	check.That(t, s.write("\x1b[H") != nil, "it shows what it does not know")
}
