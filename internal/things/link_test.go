// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"fmt"
	"testing"

	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A link into a folder that is not there is refused before anything is touched, with both names; a
// link to a missing file in a folder is written through.
func TestLinkIntoMissingFolder(t *testing.T) {
	want := things.Exact("/etc/l", []byte("ours\n"), 0o644, "")
	lost := must.Get(simhost.New([]byte("-- etc/l link=/opt/gone/config.toml --\n")))(t)
	_, err := want.Look(t.Context(), lost)
	check.Says(t, fmt.Sprint(err), "cannot use /etc/l as a file: it is a link to /opt/gone/config.toml, and the folder of that is not there")

	free := must.Get(simhost.New([]byte("-- etc/l link=/opt/config.toml --\n-- opt/ --\n")))(t)
	found := must.Get(want.Look(t.Context(), free))(t)
	must.OK(t, want.Make(t.Context(), free, must.Get(want.To(found))(t)))
	data := must.Get(free.ReadFile("/opt/config.toml"))(t)
	check.Equal(t, string(data), "ours\n", "written through the link:")
}
