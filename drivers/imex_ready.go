// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	// imexPatience is how long IMEX may take to become ready; when its peers run, it takes seconds.
	imexPatience = time.Minute
	imexPause    = time.Second // between two questions whether it is ready
)

// imexRestart is things.Restart for a daemon that undo may stop, start or mask: while it does not
// run it reads its files at its start.
type imexRestart struct{ converge.Follower }

// imexRestarted wants IMEX restarted if its files changed since it started, and ready after a
// restart.
func imexRestarted() converge.Want {
	ready := func(ctx context.Context, v host.View, _ string, _ []string) error {
		return imexReady(ctx, v)
	}
	files := []string{IMEXConfig, IMEXNodes}
	want := things.Restart(IMEXUnit, files, ready, "IMEX reads its files when it starts")
	want.Thing = imexRestart{want.Thing.(converge.Follower)}
	want.Breaks = []string{"stop-clients"}
	return want
}

// FormIMEX is the form of IMEX's thing of kind restart, for the journal.
const FormIMEX = "imex"

// Ref is the restart's, with the form by which undo finds NewIMEX.
func (r imexRestart) Ref() converge.Ref {
	ref := r.Follower.Ref()
	ref.Form = FormIMEX
	return ref
}

// NewIMEX builds IMEX's thing of kind restart for undo.
func NewIMEX(files []string) converge.Thing {
	return imexRestart{things.NewRestart(IMEXUnit, files, nil)}
}

func (r imexRestart) Look(ctx context.Context, v host.View) (converge.State, error) {
	state, err := r.Follower.Look(ctx, v)
	if err != nil {
		return state, err
	}

	state = things.DaemonState(state) // the want of the unit, which comes before this one, handles a mask
	if state == "inactive" || state == "" {
		return "", host.Later{Until: "its start"}
	}
	return state, nil
}

// imexAnswers wants this node's IMEX ready. While IMEX does not run, or runs with other files than
// wanted, it waits: the restart checks that. An IMEX that is not ready blocks no other want: it may
// wait for other nodes, or for their administrator.
func imexAnswers(nodes []string) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		state, err := NewIMEX([]string{IMEXConfig, IMEXNodes}).Look(ctx, v)
		if errors.As(err, new(host.Later)) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		if state != things.UpToDate || !imexWritten(v, nodes) {
			return "", nil
		}

		err = imexReady(ctx, v)
		if t := (*trouble.Error)(nil); errors.As(err, &t) {
			return "", trouble.Wait{For: strings.TrimPrefix(t.What, imexUnusable), Try: t.Try}
		}
		return "", err
	}
	return things.Check("IMEX is ready", look, "GPUs of other nodes are reached only through an IMEX that is ready")
}

// imexWritten says whether IMEX's files are converged.
func imexWritten(v host.View, nodes []string) bool {
	config, err := v.ReadFile(IMEXConfig)
	if err != nil {
		return false
	}
	named := len(nodes) > 0
	edited, _ := editIMEX(named)(config)
	if !bytes.Equal(edited, config) {
		return false
	}

	list, _ := v.ReadFile(IMEXNodes) // missing where the configuration names another
	return !named || bytes.Equal(list, imexNodesText(nodes))
}

// imexUnusable begins the error of an IMEX that runs and is not ready.
const imexUnusable = "cannot use IMEX on the host: "

// imexReady waits until nvidia-imex-ctl reports this node's IMEX as ready, for as long as a start
// may take. gpuadm does not roll back nodes that wait for each other: each rollback would take a
// node away from the others.
func imexReady(ctx context.Context, v host.View) error {
	config, err := v.ReadFile(IMEXConfig)
	if err != nil || configValues(config)[imexEnabled] != "1" {
		return nil // the file from before gpuadm, which a rollback restores: IMEX does not answer under it
	}

	unit, err := v.Unit(ctx, IMEXUnit)
	if err != nil {
		return err
	}
	running := unit.Uptime - unit.Since
	deadline := time.Now().Add(imexPatience - running)
	for {
		state, err := askIMEX(ctx, v)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			return &trouble.Error{
				What: "cannot ask IMEX whether it is ready: nvidia-imex-ctl is not installed",
				Try:  []string{"install the package of IMEX again: nvidia-imex, or nvidia-imex-BRANCH of the driver's branch"},
			}
		case state == "READY":
			return nil
		case !time.Now().Before(deadline):
			return imexNotReady(state, err)
		}

		if err := host.Pause(ctx, imexPause); err != nil {
			return err
		}
	}
}

// askIMEX returns the one word that nvidia-imex-ctl prints: READY, INITIALIZING,
// STARTING_AUTH_SERVER, WAITING_FOR_PEERS, WAITING_FOR_RECOVERY, INIT_GPU, SHUTTING_DOWN or
// UNAVAILABLE. If the program fails, that is UNAVAILABLE, and the error says why.
// Sources: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html;
// DCGM_FI_IMEX_DAEMON_STATUS in dcgmlib/dcgm_fields.h of https://github.com/NVIDIA/DCGM;
// cmd/compute-domain-daemon/main.go in https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu,
// which takes "READY\n" for ready and nothing else.
func askIMEX(ctx context.Context, v host.View) (string, error) {
	out, err := v.Ask(ctx, "nvidia-imex-ctl", "-q")
	if err != nil {
		return "UNAVAILABLE", err
	}
	return strings.TrimSpace(string(out)), nil
}

// imexNotReady says that IMEX waits for other nodes, or that it cannot be used. err is the error of
// nvidia-imex-ctl, nil if it answered.
func imexNotReady(state string, err error) error {
	if state == "WAITING_FOR_PEERS" || state == "WAITING_FOR_RECOVERY" {
		return trouble.Wait{
			For: "IMEX of the other nodes answers this node's",
			Try: []string{"nvidia-imex-ctl -N, which shows the nodes of the domain and their state"},
		}
	}

	t := &trouble.Error{
		What: imexUnusable + fmt.Sprintf("nvidia-imex-ctl -q says %s, and not READY", state),
		Try: []string{
			"journalctl -u " + IMEXUnit + " and /var/log/nvidia-imex.log, which say why",
			"nvidia-imex-ctl -N, which shows the nodes of the domain; this node's own address belongs to the list of them",
		},
		Err: err,
	}
	if err != nil {
		t.Because = []string{err.Error()}
	}
	return t
}
