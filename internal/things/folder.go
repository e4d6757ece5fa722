// SPDX-License-Identifier: Apache-2.0

package things

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// folder is a folder, or a link to one. Its state is "MODE UID:GID", whatever is in it. Make
// removes only an empty folder: files of other programs stay, and the folder with them.
type folder string

// Folders wants every folder on the way to name, and name itself, to exist. Existing folders do not
// change.
func Folders(name, why string) []converge.Want {
	var wants []converge.Want
	for dir := path.Clean(name); dir != "/" && dir != "."; dir = path.Dir(dir) {
		wants = append(wants, converge.Want{
			Thing: folder(dir),
			Why:   why,
			To:    existing,
		})
	}

	slices.Reverse(wants)

	return wants
}

// existing is the desired state of a folder.
func existing(found converge.State) (converge.State, error) {
	target, isLink := strings.CutPrefix(string(found), linkState)
	if isLink {
		return "", &trouble.Error{
			What: "the folder is a link to " + target + ", which is not there",
			Try:  []string{"make that folder, or remove the link"},
		}
	}

	if found != "" {
		return found, nil
	}
	return "0755 0:0", nil
}

// NewFolder names a folder, for undo.
func NewFolder(name string) converge.Thing { return folder(name) }

func (f folder) Ref() converge.Ref {
	return converge.Ref{Kind: "folder", Name: string(f)}
}

func (f folder) Look(_ context.Context, v host.View) (converge.State, error) {
	info, err := v.Stat(string(f))
	if host.NotExist(err) {
		return f.leadsNowhere(v)
	}
	if err != nil {
		return "", err
	}
	if !info.Mode.IsDir() {
		return "", fmt.Errorf("cannot use %s as a folder: it is %s", string(f), host.TypeName(info.Mode))
	}

	a := info.Attr()
	return converge.State(fmt.Sprintf("%s %d:%d", modeText(a.Mode), a.UID, a.GID)), nil
}

// linkState begins the state of a link to a folder that is not there; the place where it leads
// follows.
const linkState = "link to "

// leadsNowhere is the state of a folder that is not there, or of a link to one: no folder can be
// made in its place.
func (f folder) leadsNowhere(v host.View) (converge.State, error) {
	target, err := v.Readlink(string(f))
	if host.NotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return converge.State(linkState + target), nil
}

// TakeOut removes a folder that gpuadm made, whatever its mode is now. Make keeps the folder if
// files are in it. A folder that existed before gpuadm stays, and so does a link in its place.
func (f folder) TakeOut(_ host.View, found, before, after converge.State) (converge.State, []string, error) {
	isLink := strings.HasPrefix(string(found), linkState)
	if found != before && (before != "" || isLink) {
		left := fmt.Sprintf("folder %s is %s, gpuadm had made it %s", string(f), found, after)
		return found, []string{left}, nil
	}
	return before, nil, nil
}

func (f folder) Make(_ context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return f.remove(h)
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

// remove removes the folder if it is empty.
func (f folder) remove(h host.Host) error {
	if err := h.Sweep(string(f)); err != nil { // temporary files of a killed gpuadm
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
