// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

// bundledRuns is how many of the last runs a bundle has.
const bundledRuns = 10

// bundledLines is how many lines of the journal a bundle has of each unit.
const bundledLines = "2000"

// bundledUnits are those that make a GPU node: gpuadm's, engines, kubelets from all vendors, NVIDIA's daemons.
func bundledUnits() []string {
	return []string{
		stages.BootUnit, stages.ReadyUnit, "containerd.service", "docker.service", "crio.service", "kubelet.service", "k3s.service", "k3s-agent.service",
		"rke2-server.service", "rke2-agent.service", "nodeadm-config.service", "nodeadm-run.service", "cloud-final.service",
		"nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-cdi-refresh.service", "nvidia-dcgm.service",
	}
}

// recording gathers all facts, and writes down what they and all answers were read from.
func (b *bundle) recording(ctx context.Context) ([]byte, error) {
	if _, err := facts.Gather(ctx, b.seen, facts.Everything); err != nil {
		return nil, err
	}
	return b.seen.Txtar(), nil
}

// answers adds what gpuadm itself says.
func (b *bundle) answers(ctx context.Context) {
	asked := func(engine func(context.Context) (*converge.Engine, error), of func(context.Context, *converge.Engine) (any, error)) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			e, err := engine(ctx)
			if errors.Is(err, errNoSpec) {
				return nil, errors.New("there is no plan without a spec: this machine has no node.toml, and -f names none")
			} else if err != nil {
				return nil, err
			}
			answer, err := of(ctx, e)
			if err != nil {
				return nil, err
			}
			return inJSON(answer)
		}
	}
	b.add(ctx, "doctor.json", "what gpuadm doctor finds", func(ctx context.Context) ([]byte, error) {
		if !b.h.Live() {
			return nil, errors.New("the machine does not run")
		}
		r, err := b.c.examine(ctx, b.h, b.seen)
		if err != nil {
			return nil, err
		}
		return inJSON(r)
	})
	b.add(ctx, "plan.json", "what gpuadm apply would change", asked(func(ctx context.Context) (*converge.Engine, error) {
		e, _, err := b.c.engine(ctx, nil, nil)
		return e, err
	}, func(ctx context.Context, e *converge.Engine) (any, error) { return e.Plan(ctx, b.seen) }))
	b.add(ctx, "status.json", "what gpuadm has made, and what was changed since", asked(func(ctx context.Context) (*converge.Engine, error) {
		e, _, err := b.c.engineOfFiles(ctx, nil)
		return e, err
	}, func(ctx context.Context, e *converge.Engine) (any, error) { return e.Status(ctx, b.seen) }))
	b.add(ctx, "runs.json", fmt.Sprintf("the last %d runs, with their changes", bundledRuns), func(context.Context) ([]byte, error) {
		j := converge.ReadJournal(b.h)
		switch {
		case j.Refused != nil:
			return nil, j.Refused
		case j.Problem != "":
			return nil, errors.New(j.Problem)
		}
		type run struct {
			converge.Run
			Changes []converge.Change `json:"changes"`
		}
		var runs []run
		for _, r := range j.Runs() {
			runs = append(runs, run{r, r.Makes})
		}
		if len(runs) == 0 {
			return nil, errors.New("gpuadm has changed nothing on this machine")
		}
		return inJSON(runs[max(0, len(runs)-bundledRuns):])
	})
}

// inJSON is a value as -o json prints it: without secrets.
func inJSON(v any) ([]byte, error) {
	var text bytes.Buffer
	err := printJSON(&text, v)
	return text.Bytes(), err
}

// logs adds what the machine says.
func (b *bundle) logs(ctx context.Context) {
	ask := func(argv ...string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) { return b.h.Ask(ctx, argv...) }
	}
	var there []string
	b.text(ctx, "units.txt", "units: loaded, enabled, running since when", func(ctx context.Context) ([]byte, error) {
		var rows []string
		var problem error
		for _, name := range bundledUnits() {
			u, err := b.h.Unit(ctx, name)
			if err != nil && problem == nil {
				problem = err
				if errors.As(err, new(host.Later)) {
					problem = errors.New("systemd does not run here")
				}
			}
			if err != nil || u.Load == "not-found" {
				continue
			}
			there = append(there, name)
			since := ""
			if !u.Started.IsZero() {
				since = "since " + u.Started.UTC().Format(time.RFC3339)
			}
			rows = append(rows, fmt.Sprintf("%-30s %-10s %-10s %-10s %s %s", name, u.Load, u.Enabled, u.Active, since, strings.Join(u.Files, " ")))
		}
		if len(rows) > 0 {
			problem = nil
		}
		return []byte(strings.Join(rows, "\n") + "\n"), problem
	})
	// journalctl(1): --boot alone is the current boot, --dmesg the kernel's lines.
	b.text(ctx, "journal/gpuadm.txt", "gpuadm's own lines of this boot, runs by hand too", ask("journalctl", "--boot", "--no-pager", "--output=short-iso", "--lines="+bundledLines, "SYSLOG_IDENTIFIER=gpuadm"))
	for _, unit := range there {
		b.text(ctx, "journal/"+unit+".txt", "the unit's lines of this boot", ask("journalctl", "--boot", "--no-pager", "--output=short-iso", "--lines="+bundledLines, "--unit="+unit))
	}
	b.text(ctx, "kernel.txt", "the kernel's lines of this boot about GPUs, modules and PCI", func(ctx context.Context) ([]byte, error) {
		said, err := b.h.Ask(ctx, "journalctl", "--boot", "--dmesg", "--no-pager", "--output=short-iso")
		if err != nil {
			if said, err = b.h.Ask(ctx, "dmesg", "--ctime"); err != nil {
				return nil, err
			}
		}
		return linesWith(said, "nvrm", "nvidia", "nouveau", "nova", "xid", "aer:", "pcieport", "lockdown", "module verification", "vfio", "oom-kill"), nil
	})
	b.text(ctx, "packages.txt", "packages of the driver, the toolkit, engines, kubelet and kernels", func(ctx context.Context) ([]byte, error) {
		said, err := b.h.Ask(ctx, "dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Package} ${Architecture} ${Version}\n")
		if err != nil {
			if said, err = b.h.Ask(ctx, "rpm", "-qa"); err != nil {
				return nil, err
			}
		}
		return linesWith(said, "nvidia", "cuda", "containerd", "docker", "cri-", "kube", "runc", "crun", "dkms", "linux-image", "linux-headers", "kernel", "datacenter-gpu"), nil
	})
	b.text(ctx, "versions.txt", "gpuadm, kernel, engine, kubelet, toolkit, driver", b.versions)
}

// versions asks all programs. One that is not there is no fault.
func (b *bundle) versions(ctx context.Context) ([]byte, error) {
	said := []string{"gpuadm " + version()}
	for _, name := range []string{"/proc/version", "/proc/driver/nvidia/version"} {
		if data, err := b.h.ReadFile(name); err == nil {
			said = append(said, strings.TrimSpace(string(data)))
		}
	}
	for _, argv := range [][]string{
		{"containerd", "--version"},
		{"crio", "--version"},
		{"docker", "--version"},
		{"runc", "--version"},
		{"kubelet", "--version"},
		{"nvidia-container-runtime", "--version"},
		{"nvidia-ctk", "--version"},
		{"nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader"},
		{"systemctl", "--version"},
	} {
		if out, err := b.h.Ask(ctx, argv...); err == nil {
			said = append(said, strings.Join(argv, " ")+": "+strings.TrimSpace(string(out)))
		}
	}
	return []byte(strings.Join(said, "\n") + "\n"), nil
}

// linesWith keeps the lines that have one of the words.
func linesWith(text []byte, words ...string) []byte {
	var kept []byte
	for line := range bytes.Lines(text) {
		low := strings.ToLower(string(line))
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(low, w) }) {
			kept = append(kept, line...)
		}
	}
	return kept
}
