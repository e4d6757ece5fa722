// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// folder is a folder, or a link to one. Its state is "MODE UID:GID". What lies in it is not its business, so it is
// removed only when it is empty: what others have put there stays, and the folder with it.
type folder string

// Folders wants every folder on the way to name, and name itself, to exist. Existing folders do not change.
func Folders(name, why string) []converge.Want {
	var wants []converge.Want
	for dir := path.Clean(name); dir != "/" && dir != "."; dir = path.Dir(dir) {
		wants = append(wants, converge.Want{Thing: folder(dir), Why: why, To: func(found converge.State) (converge.State, error) {
			if found != "" {
				return found, nil
			}
			return "0755 0:0", nil
		}})
	}
	slices.Reverse(wants)
	return wants
}

// NewFolder names a folder, for undo.
func NewFolder(name string) converge.Thing { return folder(name) }

func (f folder) Ref() converge.Ref { return converge.Ref{Kind: "folder", Name: string(f)} }

func (f folder) Look(_ context.Context, v host.View) (converge.State, error) {
	info, err := v.Stat(string(f))
	if host.NotExist(err) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if !info.Mode.IsDir() {
		return "", fmt.Errorf("cannot use %s as a folder: it is %s", string(f), host.TypeName(info.Mode))
	}
	a := info.Attr()
	return converge.State(fmt.Sprintf("%s %d:%d", modeText(a.Mode), a.UID, a.GID)), nil
}

// TakeOut removes a folder that gpuadm made, whatever its mode is by now. Make keeps it if others have files in it. A folder that
// existed before gpuadm stays.
func (f folder) TakeOut(_ host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	if before != "" && found != before {
		return found, []string{fmt.Sprintf("folder %s is %s, gpuadm had made it %s", string(f), found, after)}, nil
	}
	return before, nil, nil
}

func (f folder) Make(_ context.Context, h host.Host, to converge.State) error {
	if to == "" {
		if err := h.Sweep(string(f)); err != nil { // what a killed gpuadm left in it is ours
			return err
		}
		names, err := h.ReadDir(string(f))
		if err != nil {
			return err
		}
		if len(names) > 0 {
			return converge.Stays{Why: fmt.Sprintf("it holds %s, which is not ours", names[0])}
		}
		return h.Remove(string(f))
	}
	var mode string
	var a host.Attr
	_, err := fmt.Sscanf(string(to), "%s %d:%d", &mode, &a.UID, &a.GID)
	if err == nil {
		a.Mode, err = parseMode(mode)
	}
	if err != nil {
		return fmt.Errorf("cannot read state %q: not one of a folder", to)
	}
	if _, err := h.Stat(string(f)); host.NotExist(err) {
		return h.Mkdir(string(f), a)
	}
	return h.SetAttr(string(f), a)
}

// check verifies a state that gpuadm cannot make: "8 GPUs on the bus". Its state is "ok" or what is wrong.
type check struct {
	name string
	look func(context.Context, host.View) (problem string, err error)
}

// orTry begins a line of a problem that names a fix.
const orTry = "try: "

// OrTry adds to a problem a fix that depends on what was found, besides the check's own.
func OrTry(fix string) string {
	if fix == "" {
		return ""
	}
	return "\n" + orTry + fix
}

// Check wants look to find no problem. A problem stops an apply before anything is touched; try names the fix. The problem's first
// line says what is wrong, the others say why; OrTry adds fixes.
func Check(name string, look func(context.Context, host.View) (problem string, err error), why string, try ...string) converge.Want {
	return converge.Want{Thing: check{name, look}, Why: why, To: func(found converge.State) (converge.State, error) {
		if found == "ok" {
			return found, nil
		}
		what, more, _ := strings.Cut(string(found), "\n")
		t := &trouble.Error{What: what, Try: slices.Clone(try), Err: trouble.Code(name)}
		for line := range strings.Lines(more) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, orTry) {
				t.Try = append(t.Try, strings.TrimPrefix(line, orTry))
			} else if line != "" {
				t.Because = append(t.Because, line)
			}
		}
		return "", t
	}}
}

func (c check) Ref() converge.Ref { return converge.Ref{Kind: "check", Name: c.name} }

func (c check) Look(ctx context.Context, v host.View) (converge.State, error) {
	problem, err := c.look(ctx, v)
	if err != nil || problem != "" {
		return converge.State(problem), err
	}
	return "ok", nil
}

func (c check) Make(context.Context, host.Host, converge.State) error {
	return fmt.Errorf("internal error: a check cannot be made: %s", c.name)
}

// lastLook remembers what a thing's last look found: its state, or a digest that tells more. Make replaces that and nothing else, so
// that what another process writes between the look and the rename is not lost.
type lastLook struct {
	mu     sync.Mutex
	looked bool
	state  converge.State
}

// keep remembers what a look returns.
func (l *lastLook) keep(s converge.State, err error) (converge.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked, l.state = err == nil, s
	return s, err
}

// found is what the last look kept. Where nothing has looked since the last replace, found looks now: the
// engine always looks first.
func (l *lastLook) found(ctx context.Context, h host.Host, t converge.Thing) (converge.State, error) {
	l.mu.Lock()
	looked := l.looked
	l.mu.Unlock()
	if !looked {
		if _, err := t.Look(ctx, h); err != nil {
			return "", err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, nil
}

// replace makes a name be a file, a link, or nothing, where another process has not changed it.
func (l *lastLook) replace(h host.Host, name string, with *host.Entry, expected func(found *host.Entry) bool) error {
	err := h.Replace(name, with, expected)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.looked = false
	}
	if errors.As(err, new(host.Changed)) {
		return &trouble.Error{What: err.Error(), Try: []string{"run the same command again"}, Err: err}
	}
	return err
}
