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
	imexPause    = time.Second
)

// freshIMEX is things.Restart for a daemon that undo may stop, start or mask: while it does not run
// it reads its files at its start.
type freshIMEX struct{ converge.Follower }

// imexFresh wants IMEX restarted if its files changed since it started, and ready after a restart.
func imexFresh() converge.Want {
	w := things.Restart(IMEXUnit, []string{IMEXConfig, IMEXNodes}, func(ctx context.Context, v host.View, _ string, _ []string) error {
		return imexReady(ctx, v)
	}, "IMEX reads its files when it starts")
	w.Thing, w.Breaks = freshIMEX{w.Thing.(converge.Follower)}, []string{"stop-clients"}
	return w
}

// FormIMEX is the form of IMEX's thing of kind restart, for the journal.
const FormIMEX = "imex"

// Ref is the restart's, with the form by which undo finds NewIMEX.
func (f freshIMEX) Ref() converge.Ref {
	r := f.Follower.Ref()
	r.Form = FormIMEX
	return r
}

// NewIMEX builds IMEX's thing of kind restart for undo.
func NewIMEX(files []string) converge.Thing {
	return freshIMEX{things.NewRestart(IMEXUnit, files, nil)}
}

func (f freshIMEX) Look(ctx context.Context, v host.View) (converge.State, error) {
	state, err := f.Follower.Look(ctx, v)
	state = things.DaemonState(state) // the want of the unit, which comes before this one, handles a mask
	if err == nil && (state == "inactive" || state == "") {
		return "", host.Later{Until: "its start"}
	}
	return state, err
}

// imexAnswers wants this node's IMEX ready. While IMEX does not run, or runs with other files than
// wanted, it waits: the restart checks that. An IMEX that is not ready blocks no other want: it may
// wait for other nodes, or for their administrator.
func imexAnswers(nodes []string) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		state, err := NewIMEX([]string{IMEXConfig, IMEXNodes}).Look(ctx, v)
		if errors.As(err, new(host.Later)) || err == nil && (state != things.UpToDate || !imexWritten(v, nodes)) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		err = imexReady(ctx, v)
		if t := (*trouble.Error)(nil); errors.As(err, &t) {
			return "", trouble.Wait{For: strings.TrimPrefix(t.What, "cannot use IMEX on the host: "), Try: t.Try}
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
	edited, _ := editIMEX(len(nodes) > 0)(config)
	named, _ := v.ReadFile(IMEXNodes) // missing where the configuration names another
	return bytes.Equal(edited, config) && (len(nodes) == 0 || string(named) == imexNodesText(nodes))
}

func imexTry() []string {
	return []string{
		"journalctl -u " + IMEXUnit + " and /var/log/nvidia-imex.log, which say why",
		"nvidia-imex-ctl -N, which shows the nodes of the domain; this node's own address belongs to the list of them",
	}
}

// imexReady waits until nvidia-imex-ctl reports this node's IMEX as ready, for as long as a start
// may take. The tool prints one word: READY, INITIALIZING, STARTING_AUTH_SERVER, WAITING_FOR_PEERS,
// WAITING_FOR_RECOVERY, INIT_GPU, SHUTTING_DOWN or UNAVAILABLE. gpuadm does not roll back nodes
// that wait for each other: each rollback would take a node away from the others.
// Sources: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html;
// DCGM_FI_IMEX_DAEMON_STATUS in dcgmlib/dcgm_fields.h of https://github.com/NVIDIA/DCGM;
// cmd/compute-domain-daemon/main.go in https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu,
// which takes "READY\n" for ready and nothing else.
func imexReady(ctx context.Context, v host.View) error {
	if config, err := v.ReadFile(IMEXConfig); err != nil || imexValues(config)[imexEnabled] != "1" {
		return nil // the file from before gpuadm, which a rollback restores: IMEX does not answer under it
	}
	u, err := v.Unit(ctx, IMEXUnit)
	if err != nil {
		return err
	}
	over := time.Now().Add(imexPatience - (u.Uptime - u.Since))
	for {
		out, err := v.Ask(ctx, "nvidia-imex-ctl", "-q")
		state := strings.TrimSpace(string(out))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist):
			return &trouble.Error{What: "cannot ask IMEX whether it is ready: nvidia-imex-ctl is not installed", Try: []string{"install the package nvidia-imex whole"}}
		case err == nil && state == "READY":
			return nil
		case err != nil:
			state = "UNAVAILABLE"
		}
		if !time.Now().Before(over) {
			if state == "WAITING_FOR_PEERS" || state == "WAITING_FOR_RECOVERY" {
				return trouble.Wait{For: "IMEX of the other nodes answers this node's", Try: []string{"nvidia-imex-ctl -N, which shows the nodes of the domain and their state"}}
			}
			t := &trouble.Error{What: fmt.Sprintf("cannot use IMEX on the host: nvidia-imex-ctl -q says %s, and not READY", state), Try: imexTry(), Err: err}
			if err != nil {
				t.Because = []string{err.Error()}
			}
			return t
		}
		if err := host.Pause(ctx, imexPause); err != nil {
			return err
		}
	}
}
