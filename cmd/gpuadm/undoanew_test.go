// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/simhost"
)

// TestUndoAnew: an undo that has replaced the driver ends in a new process, which makes the partitions again that the kernel module
// has forgotten; where none can be started it says so, and the next undo ends it.
func TestUndoAnew(t *testing.T) {
	for _, can := range []bool{true, false} {
		n, err := simhost.New([]byte(`
-- sim.toml --
[[gpu]]
model = "A100-40"
mode = true
-- srv/l link=there --
-- var/lib/gpuadm/blobs/ --
-- var/lib/gpuadm/journal.jsonl --
{"format":1,"what":"begin","run":"a","time":"2026-01-02T03:04:05Z"}
{"format":1,"what":"make","run":"a","time":"2026-01-02T03:04:05Z","change":{"stage":"mig","kind":"mig","name":"0000:17:00.0","before":"on 3g.20gb@4","after":"on 3g.20gb@4","taken":true}}
{"format":1,"what":"make","run":"a","time":"2026-01-02T03:04:05Z","change":{"stage":"runtime","kind":"link","name":"/srv/l","before":"","after":"there"}}
{"format":1,"what":"end","run":"a","time":"2026-01-02T03:04:05Z","result":"ok"}
`))
		if err != nil {
			t.Fatal(err)
		}
		var out, bad strings.Builder
		again, last := true, 0
		e := env{
			stdin: strings.NewReader(""), stdout: &out, stderr: &bad, getenv: func(string) string { return "" }, root: true,
			open: func(string) (host.Host, error) {
				if again {
					return replaced{n, true}, nil
				}
				return n, nil
			},
		}
		anew := func(...string) error {
			again = false
			last = run(context.Background(), e, []string{"undo"})
			return exit(last)
		}
		if can {
			e.startAnew = anew
		}
		code := run(context.Background(), e, []string{"undo"})
		if _, err := n.Lstat("/srv/l"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the link: %v", err)
		}
		if !can {
			if code != exitCannot || !strings.Contains(bad.String(), "gpuadm undo, which goes on from here") {
				t.Errorf("without a new process: exit %d\n%s%s", code, out.String(), bad.String())
			}
			_ = anew()
		}
		d, err := n.Driver(t.Context())
		if err != nil || len(d.GPUs[0].Instances) != 1 || last != 0 || !strings.Contains(out.String(), "1 change put back; 1 thing made again by a new process") || !strings.Contains(out.String(), "0 changes put back, 1 made again") || !strings.Contains(bad.String(), "mig 0000:17:00.0   made again") {
			t.Errorf("a new process can be started %t: exit %d, %d, %v\n%s%s", can, code, last, err, out.String(), bad.String())
		}
	}
}
