// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// without is a machine on which no program is found.
type without struct{ *simhost.Node }

func (without) AskAbout(context.Context, map[string][]byte, ...string) ([]byte, error) {
	return nil, fs.ErrNotExist
}

// TestProveWithoutADaemon: an engine whose unit runs and whose program is gone cannot be asked, and that is what is said.
func TestProveWithoutADaemon(t *testing.T) {
	n, err := simhost.New([]byte("-- etc/containerd/config.toml --\nversion = 2\n"))
	must.OK(t, err)
	const name = "/etc/containerd/config.toml"
	err = Prove(t.Context(), without{n}, "", Tree{Root: File{Path: name, Data: []byte("version = 2\n")}}, Handler{Name: "nvidia", Binary: Binary}, name, []byte("version = 2\n"), []byte("version = 2\n#\n"))
	tr := (*trouble.Error)(nil)
	if !errors.As(err, &tr) || !strings.Contains(tr.What, "cannot edit "+name+": the engine's program is not found") || len(tr.Try) != 1 || strings.Contains(tr.Try[0], "config dump") {
		t.Errorf("%+v", err)
	}
}
