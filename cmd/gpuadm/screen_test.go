// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/diff"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// atTerminal is a terminal of so many columns; close closes it and returns what it has shown.
func atTerminal(t *testing.T, columns int) (screen *os.File, close func() string) {
	t.Helper()
	pty := must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	must.OK(t, unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0))
	must.OK(t, unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{
		Col: uint16(columns),
		Row: 24,
	}))
	number := must.Get(unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN))(t)
	screen = must.Get(os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	seen := make(chan string)
	go func() {
		text, _ := bufio.NewReader(pty).ReadString(0)
		seen <- strings.TrimSuffix(text, "\x00")
	}()
	return screen, func() string {
		// Linux may drop what comes just before the last close (n_tty_read looks for input, then
		// for TTY_OTHER_CLOSED): wait for a mark.
		must.Get(screen.Write([]byte{0}))(t)
		text := <-seen
		_, _ = screen.Close(), pty.Close()
		return strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n") // a live line is wiped by \r
	}
}

var (
	painted = regexp.MustCompile("\x1b\\[[0-9;]*[mK]")
	dated   = regexp.MustCompile(`20\d{6}-\d{6}(-\w+)?|20\d\d-\d\d-\d\d \d\d:\d\d|\d+\.\d s|\d+ checks`)
)

// TestScreens: what each verb shows at a terminal of 80 and of 120 columns. Lines break between
// words; one that is longer is to be copied. Without colours it is the same text. A "$ gpuadm" line
// of the file is a command, "# NAME" the recorded machine that the next ones run on, with the spec
// of the quoted text.
func TestScreens(t *testing.T) {
	script := string(must.Get(os.ReadFile("testdata/screens.txt"))(t))
	for _, columns := range []int{80, 120} {
		var all strings.Builder
		var n *simhost.Node
		for line := range strings.Lines(script) {
			line = strings.TrimSpace(line)
			all.WriteString(line + "\n")
			if name, text, is := strings.Cut(strings.TrimPrefix(line, "# "), " "); is && line[0] == '#' {
				n = must.Get(simhost.New(recorded(t)[name]))(t)
				if n.Mkdir(specHome, host.Attr{Mode: 0o755}) == nil {
					must.OK(t, n.WriteFile(specHome+"/node.toml", []byte("format = 1\n"+strings.ReplaceAll(text, `\n`, "\n")+"\n"), host.Attr{Mode: 0o644}))
				}
				continue
			}

			var shown [2]string
			for i, plain := range []string{"1", ""} {
				screen, close := atTerminal(t, columns)
				on := n
				if plain != "" { // a run changes the machine
					on = n.Clone()
				}
				e := envOn(on, screen)
				e.getenv = func(name string) string {
					return map[string]string{"NO_COLOR": plain}[name]
				}
				run(t.Context(), e, strings.Fields(strings.TrimPrefix(line, "$ gpuadm ")))
				shown[i] = dated.ReplaceAllStringFunc(close(), func(s string) string {
					return strings.Repeat("N", len(s))
				})
			}

			bare := painted.ReplaceAllString(shown[1], "")
			shown[0] = painted.ReplaceAllString(shown[0], "") // a live line is wiped in both
			check.That(t, shown[0] == bare, "%s: without colours:\n%s\nwith:\n%s", line, shown[0], bare)
			for said := range strings.Lines(bare) {
				said = strings.TrimSpace(said)
				file := said != "" && strings.ContainsRune("+-#", rune(said[0])) // a line of one
				check.That(t, file || utf8.RuneCountInString(said) <= columns || toType(said) != said || strings.Contains(said, "sudo gpuadm"), "%s: %d columns: %s", line, columns, said)
			}

			all.WriteString(strings.ReplaceAll(shown[1], "\x1b", "^[") + "\n")
		}

		file := fmt.Sprintf("testdata/screens-%d.txt", columns)
		if *update {
			must.OK(t, os.WriteFile(file, []byte(all.String()), 0o644))
			continue
		}
		check.None(t, diff.Texts(file, must.Get(os.ReadFile(file))(t), []byte(all.String())), "%s:", file)
	}
}
