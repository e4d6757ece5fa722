// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A gadget is a thing with the text of a file as its state; a test can spoil its look and its make.
type gadget struct {
	name string
	look func() error
	make func(h host.Host, to converge.State) error // its error, or nil to make it; errSkip does nothing
}

var errSkip = errors.New("skip")

func (g gadget) Ref() converge.Ref { return converge.Ref{Kind: "gadget", Name: g.name} }

func (g gadget) Look(_ context.Context, v host.View) (converge.State, error) {
	if g.look != nil {
		if err := g.look(); err != nil {
			return "", err
		}
	}
	b, err := v.ReadFile(g.name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return converge.State(b), err
}

func (g gadget) Make(_ context.Context, h host.Host, to converge.State) error {
	var reboot error
	if g.make != nil {
		err := g.make(h, to)
		if errors.Is(err, errSkip) {
			return nil
		}
		if err != nil && !errors.As(err, new(host.Reboot)) {
			return err
		}
		reboot = err
	}
	var err error
	if to == "" {
		err = h.Remove(g.name)
	} else {
		err = h.WriteFile(g.name, []byte(to), host.Attr{Mode: 0o644})
	}
	if err != nil {
		return err
	}
	return reboot
}

// keys is a file of words, each of which can be taken out alone.
type keys struct{ gadget }

func (k keys) Ref() converge.Ref { return converge.Ref{Kind: "keys", Name: k.name} }

func (keys) TakeOut(_ host.View, found, before, after converge.State) (converge.State, []string, error) {
	words := strings.Fields(string(found))
	was, became := strings.Fields(string(before)), strings.Fields(string(after))
	words = slices.DeleteFunc(words, func(w string) bool { return slices.Contains(became, w) && !slices.Contains(was, w) })
	for _, w := range was {
		if !slices.Contains(became, w) && !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	return converge.State(strings.Join(words, " ")), nil, nil
}

// with wants a word among the words.
func (k keys) with(word string) converge.Want {
	return converge.Want{Thing: k, To: func(found converge.State) (converge.State, error) {
		words := strings.Fields(string(found))
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
		return converge.State(strings.Join(words, " ")), nil
	}}
}

// gadgets is an engine that knows some gadgets.
func gadgets(t testing.TB, known []gadget, stages ...converge.Stage) *converge.Engine {
	e := engineOf(t, stages...)
	e.Spec = parse(t, "[driver]\n[runtime]\n[toolkit]\n")
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if i := slices.IndexFunc(known, func(g gadget) bool { return g.name == ref.Name }); i >= 0 && ref.Kind == "gadget" {
			return known[i], nil
		}
		switch ref.Kind {
		case "gadget":
			return gadget{name: ref.Name}, nil
		case "keys":
			return keys{gadget{name: ref.Name}}, nil
		}
		return kinds(ref)
	}
	return e
}

func named(name string, wants ...converge.Want) converge.Stage {
	return converge.Stage{Name: name, Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return wants, nil }}
}

func content(n *simhost.Node, name string) string {
	b, err := n.ReadFile(name)
	if err != nil {
		return fmt.Sprintf("(%v)", errors.Is(err, fs.ErrNotExist))
	}
	return string(b)
}
