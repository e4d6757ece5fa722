// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestFollow: a page's commands are typed in their order, and its blocks of output are what they
// print now; all else stays as it is.
func TestFollow(t *testing.T) {
	page := strings.ReplaceAll(`# A page

'''
one 1
two
'''

<!-- first 1, last 2 lines -->
'''text
an old output
'''

<!-- add to /etc/file -->
'''toml
key = 1
'''

'''toml
shown = 2
'''

'''console
$ three
old

$ four
'''
The end.
`, "'''", "```")
	var did []string
	got := Follow("page.md", page, Reader{
		Type: func(line Line) string {
			did = append(did, line.At+" "+line.Text)
			return strings.Repeat(line.Text+"\n", 3)
		},
		Edit: func(verb, name, text string) { did = append(did, verb+" "+name+" "+strings.TrimSpace(text)) },
	})

	want := strings.NewReplacer(
		"an old output", "one 1\n  … 3 more lines\ntwo\ntwo",
		"$ three\nold", "$ three\nthree\nthree\nthree",
		"$ four", "$ four\nfour\nfour\nfour",
	).Replace(page)
	check.Equal(t, got, want, "the page:")
	check.Equal(t, strings.Join(did, "\n"),
		"page.md:4 one 1\npage.md:5 two\nadd to /etc/file key = 1\npage.md:23 three\npage.md:26 four", "done:")
}
