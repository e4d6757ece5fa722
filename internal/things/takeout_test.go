// SPDX-License-Identifier: Apache-2.0

package things

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// What is as we made it goes back, what is as it was stays so, and what is otherwise stays and is
// named.
func TestTakeOutOfUnitsAndFolders(t *testing.T) {
	for _, c := range []struct {
		thing                      converge.Merger
		found, before, after, rest converge.State
		left                       string
	}{
		{unit("u"), "enabled active", "disabled inactive", "enabled inactive", "disabled active", ""},
		{unit("u"), "enabled inactive", "disabled inactive", "enabled active", "disabled inactive", ""},
		{unit("u"), "disabled inactive", "enabled active", "masked inactive", "enabled active", ""},
		{unit("u"), "masked inactive", "disabled inactive", "enabled active", "masked inactive", "unit u is masked, gpuadm had made it enabled"},
		{unit("u"), "enabled active", "", "enabled active", "disabled inactive", ""},
		{unit("u"), "enabled -", "", "enabled -", "disabled -", ""},
		{unit("u"), "enabled active", "disabled inactive", "disabled inactive", "enabled active", ""},
		{folder("/f"), "0700 0:0", "", "0755 0:0", "", ""},
		{folder("/f"), "0700 0:0", "0750 0:0", "0755 0:0", "0700 0:0", "folder /f is 0700 0:0, gpuadm had made it 0755 0:0"},
		{folder("/f"), "link to /g", "", "0755 0:0", "link to /g", "folder /f is link to /g, gpuadm had made it 0755 0:0"},
		{folder("/f"), "link to /g", "link to /g", "link to /g", "link to /g", ""},
	} {
		rest, left, err := c.thing.TakeOut(nil, c.found, c.before, c.after)
		if err != nil || rest != c.rest || strings.Join(left, "\n") != c.left {
			t.Errorf("%s found %q after %q → %q: %q, left %q, %v", c.thing.Ref().Name, c.found, c.before, c.after, rest, left, err)
		}
	}
}

// A file's bytes, mode, owner, attributes and link are parts of their own.
func TestTakeOutOfFiles(t *testing.T) {
	merge := func(before, after, found []byte) ([]byte, []string, error) {
		return bytes.ReplaceAll(found, []byte("ours\n"), nil), nil, nil
	}
	for name, c := range map[string]struct {
		merge                      MergeFunc
		before, after, found, want string // "MODE OWNER text", "" for no file
		left, err                  string
	}{
		"mode changed":                 {nil, "0644 0:0 was", "0644 0:0 ours", "0600 0:0 ours", "0600 0:0 was", "", ""},
		"our mode changed":             {nil, "0640 0:0 was", "0644 0:0 ours", "0600 0:0 ours", "0600 0:0 was", `mode of /f is "0600", gpuadm had set "0644"`, ""},
		"our mode":                     {merge, "0640 0:0 was\n", "0644 0:0 was\nours\n", "0644 0:0 was\nours\nx\n", "0640 0:0 was\nx\n", "", ""},
		"bytes restored":               {nil, "0640 0:0 was", "0644 0:0 ours", "0644 0:0 was", "0640 0:0 was", "", ""},
		"our file, other mode":         {nil, "", "0644 0:0 ours", "0600 5:5 ours", "", "", ""},
		"our file, nothing else in it": {merge, "", "0644 0:0 ours\n", "0600 0:0 ours\n\n", "", "", ""},
		"our file, added to":           {merge, "", "0644 0:0 ours\n", "0600 0:0 ours\nx\n", "0600 0:0 x\n", "", ""},
		"removed by us":                {nil, "0644 0:0 was", "", "0600 0:0 was", "0600 0:0 was", "", ""},
		"another's since":              {nil, "0644 0:0 was", "", "0644 0:0 x", "0644 0:0 x", "/f is there, gpuadm had removed it", ""},
		"no parts":                     {nil, "0644 0:0 was", "0644 0:0 ours", "0644 0:0 x", "", "", "cannot take gpuadm's part out of /f: it was changed outside gpuadm since, and is not a file"},
		"no change by gpuadm":          {nil, "0644 0:0 was", "0644 0:0 was", "0644 0:0 x", "0644 0:0 x", "", ""},
	} {
		f := NewFile("/f", c.merge)
		state := func(text string) converge.State {
			words := strings.SplitN(text, " ", 3)
			if len(words) < 3 {
				return ""
			}
			s := fileState{exists: true}
			s.mode, _ = parseMode(words[0])
			if words[1] != "0:0" {
				s.uid, s.gid = 5, 5
			}
			return f.stateWith(s, []byte(words[2]))
		}

		rest, left, err := f.TakeOut(nil, state(c.found), state(c.before), state(c.after))
		if c.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}

		var want []string
		if c.left != "" {
			want = []string{c.left}
		}
		if err != nil || rest != state(c.want) || !slices.Equal(left, want) {
			t.Errorf("%s: %q, left %q, %v", name, rest, left, err)
		}
	}
}
