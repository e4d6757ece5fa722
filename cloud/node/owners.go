// SPDX-License-Identifier: Apache-2.0

package node

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

//go:embed owners.tsv
var ownerRows string

// ownerOf names the owner of a label or taint key that gpuadm must never change; "" if the key has
// no owner. Two writers of one key overwrite each other for ever, or, as with the marks of spot
// nodes, mislead a scheduler.
func ownerOf(key string) (owner string) {
	switch key {
	case "node.kubernetes.io/exclude-from-external-load-balancers", "node.kubernetes.io/exclude-disruption":
		return "" // for operators to set
	}

	owns := func(pattern string) bool {
		isDomain := strings.HasSuffix(pattern, "/")
		return key == pattern || isDomain && strings.HasPrefix(key, pattern)
	}
	for _, p := range platform.All() {
		switch {
		case slices.Contains(p.Free, key):
			return ""
		case slices.ContainsFunc(p.Labels, owns):
			return p.Title
		case p.Karpenter != "" && owns(p.Karpenter):
			return "Karpenter"
		}
	}
	for row := range strings.Lines(ownerRows) {
		pattern, owner, ok := strings.Cut(strings.TrimSpace(row), "\t")
		if ok && owns(pattern) {
			return owner
		}
	}
	return ""
}

// refuseForeign refuses a spec that asks for a label or taint with another owner.
func refuseForeign(s spec.Spec) error {
	for _, key := range slices.Sorted(maps.Keys(s.Node.Labels)) {
		if owner := ownerOf(key); owner != "" {
			return foreignTrouble("label", key, owner)
		}
	}
	for _, t := range s.Node.Taints {
		if owner := ownerOf(t.Key); owner != "" {
			return foreignTrouble("taint", t.String(), owner)
		}
	}
	return nil
}

func foreignTrouble(what, name, owner string) error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot set the %s %s: it is %s's to set", what, name, owner),
		Try:  []string{fmt.Sprintf("drop it from %ss in [node], and set it where %s is configured", what, owner)},
		Err:  foreignKey,
	}
}
