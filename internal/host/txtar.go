// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/mask"
)

// Txtar is all that was read, as a txtar archive, the form in which package simhost takes machines.
func (r *Recorder) Txtar() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b bytes.Buffer
	fmt.Fprintf(&b, "A recorded machine. Content is here only of what is listed as safe, secret-looking values are %q.\n-- sim.toml --\n", mask.Mark)
	r.settings(&b)
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if name != "/" {
			r.files[name].section(&b, name)
		}
	}
	return b.Bytes()
}

// quote writes a TOML string: JSON's are a part of TOML's.
func quote(s string) string {
	q, _ := json.Marshal(strings.ToValidUTF8(s, "?"))
	return string(q)
}

func quoteAll(all []string) string {
	q := make([]string, len(all))
	for i, s := range all {
		q[i] = quote(s)
	}
	return "[" + strings.Join(q, ", ") + "]"
}

func (r *Recorder) settings(b *bytes.Buffer) {
	fmt.Fprintf(b, "live = %t\nnow = %s\n", r.view.Live(), r.started.UTC().Format(time.RFC3339Nano))
	if r.uptime > 0 {
		fmt.Fprintf(b, "booted = %s\n", r.started.Add(-r.uptime).UTC().Format(time.RFC3339Nano))
	}
	if len(r.absent) > 0 {
		fmt.Fprintf(b, "absent = %s\n", quoteAll(slices.Sorted(maps.Keys(r.absent))))
	}
	for _, name := range slices.Sorted(maps.Keys(r.units)) {
		u := r.units[name]
		fmt.Fprintf(b, "\n[[unit]]\nname = %s\nload = %s\nenabled = %s\nactive = %s\n", quote(name), quote(u.Load), quote(u.Enabled), quote(u.Active))
		if u.Active == "activating" {
			fmt.Fprintf(b, "sub = %s\n", quote(u.Sub))
		}
		if u.PID != 0 {
			fmt.Fprintf(b, "pid = %d\n", u.PID)
		}
		if !u.Started.IsZero() {
			fmt.Fprintf(b, "started = %s\n", u.Started.UTC().Format(time.RFC3339Nano))
		}
		if len(u.Files) > 0 {
			fmt.Fprintf(b, "files = %s\n", quoteAll(u.Files))
		}
	}
	if r.driverRecord != nil {
		r.driverRecord.settings(b)
	}
	seen := map[string]bool{}
	for _, a := range slices.Backward(r.asked) { // the last answer of each counts
		if key := strings.Join(a.argv, "\x00"); !seen[key] {
			seen[key] = true
			a.settings(b)
		}
	}
}

func (a answer) settings(b *bytes.Buffer) {
	failed := (*CommandError)(nil)
	if errors.As(a.err, &failed) && failed.Code < 0 {
		return // not installed, or it did not end: no answer
	}
	fmt.Fprintf(b, "\n[[command]]\nargv = %s\n", quoteAll(mask.Args(a.argv)))
	if safeCommand(a.argv) {
		fmt.Fprintf(b, "stdout = %s\n", quote(string(mask.Text(a.stdout))))
	}
	if failed != nil {
		fmt.Fprintf(b, "exit = %d\nstderr = %s\n", failed.Code, quote(mask.Message(failed.Stderr)))
	}
}

// section writes one file, folder or link with the markers it needs.
func (f *recorded) section(b *bytes.Buffer, name string) {
	head := strings.TrimPrefix(name, "/")
	if f.info.Mode.IsDir() {
		head += "/"
	}
	if strings.ContainsFunc(head, func(r rune) bool { return r <= ' ' || r == '"' || r == utf8.RuneError || r >= 0x7f }) {
		head = strconv.Quote(head)
	}
	data, markers := f.markers(name)
	for _, marker := range markers {
		head += " " + marker
	}
	fmt.Fprintf(b, "-- %s --\n%s", head, data)
}

func (f *recorded) markers(name string) (data []byte, markers []string) {
	i := f.info
	usual := fs.FileMode(0o644)
	switch {
	case f.link != "":
		return nil, []string{"link=" + f.link}
	case i.Mode.IsDir():
		usual = 0o755
	case i.Mode&fs.ModeNamedPipe != 0:
		markers = append(markers, "type=fifo")
	case i.Mode&fs.ModeSocket != 0:
		markers = append(markers, "type=socket")
	case i.Mode&fs.ModeCharDevice != 0:
		markers = append(markers, "type=char")
	case i.Mode&fs.ModeDevice != 0:
		markers = append(markers, "type=block")
	default:
		var known bool
		if f.read {
			data, known = safe(name, f.data)
		}
		if !known {
			markers = append(markers, fmt.Sprintf("size=%d", i.Size))
			break
		}
		switch {
		case !plainText(data):
			markers = append(markers, "base64")
			data = wrap(base64.StdEncoding.EncodeToString(data))
		case len(data) > 0 && data[len(data)-1] != '\n':
			markers = append(markers, "nonl")
			data = append(slices.Clone(data), '\n')
		}
	}
	if mode := i.Attr().Mode; mode != usual {
		markers = append(markers, fmt.Sprintf("mode=%04o", unixMode(mode)))
	}
	if i.UID != 0 || i.GID != 0 {
		markers = append(markers, fmt.Sprintf("owner=%d:%d", i.UID, i.GID))
	}
	for _, x := range slices.Sorted(maps.Keys(i.Xattrs)) {
		if strings.HasPrefix(x, "security.") || strings.HasPrefix(x, "system.") { // not user.*: who knows what is in there
			markers = append(markers, "xattr="+x+"=0s"+base64.StdEncoding.EncodeToString([]byte(i.Xattrs[x])))
		}
	}
	if i.Chattr != "" {
		markers = append(markers, "chattr="+i.Chattr)
	}
	if !kernelFile(name) {
		markers = append(markers, "ctime="+i.Ctime.UTC().Format(time.RFC3339Nano))
	}
	return data, markers
}

// plainText says whether content can be in a txtar unchanged.
func plainText(data []byte) bool {
	return utf8.Valid(data) && !bytes.ContainsAny(data, "\x00\r") && !bytes.HasPrefix(data, []byte("-- ")) && !bytes.Contains(data, []byte("\n-- "))
}

func wrap(s string) []byte {
	var b bytes.Buffer
	for len(s) > 0 {
		n := min(len(s), 76)
		b.WriteString(s[:n] + "\n")
		s = s[n:]
	}
	return b.Bytes()
}
