// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"

	"cloud.google.com/go/compute/metadata"

	"github.com/gpuadm/gpuadm/internal/host"
)

// gce asks Compute Engine's metadata service. That an answer is its own is seen by the header Metadata-Flavor.
// Source: https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
type gce struct {
	*door
	api *metadata.Client
}

func openGCE(v host.View) (*gce, error) {
	d, err := open(v, host.Web{}, metadataMost)
	if err != nil {
		return nil, err
	}
	d.flavor = "Google"
	return &gce{d, metadata.NewClient(d.client())}, nil
}

func askGCE(ctx context.Context, v host.View) (*Instance, error) {
	g, err := openGCE(v)
	if err != nil {
		return nil, err
	}
	i := &Instance{Cloud: "gce"}
	for _, ask := range [...]struct {
		path string
		need bool
		take func(string)
	}{
		{"instance/id", true, func(s string) { i.ID = s }},
		{"instance/machine-type", true, func(s string) { i.Type = path.Base(s) }}, // projects/N/machineTypes/T
		{"instance/zone", true, func(s string) { i.Zone = path.Base(s) }},         // projects/N/zones/Z
		{"instance/name", false, func(s string) { i.Name = s }},
		// Spot machines say so here, too: they are the old preemptible ones without the 24 hours.
		{"instance/scheduling/preemptible", false, func(s string) { i.Spot = s == "TRUE" }},
	} {
		text, err := g.text(ctx, ask.path, ask.need)
		if err != nil {
			return nil, err
		}
		text, _, _ = strings.Cut(text, "\n")
		switch {
		case plain(text):
			ask.take(text)
		case ask.need:
			return nil, strange("GCE", ask.path)
		}
	}
	cut := strings.LastIndexByte(i.Zone, '-') // us-central1-b
	if cut < 1 {
		return nil, strange("GCE", "instance/zone")
	}
	i.Region = i.Zone[:cut]
	return i, nil
}

// text asks for one word; "" where the service does not tell it. On GKE with Workload Identity a pod is answered by GKE's
// own service, which conceals some, with status 403 or 404.
func (g *gce) text(ctx context.Context, path string, need bool) (text string, err error) {
	err = tries(ctx, func(ctx context.Context) error {
		text, err = g.api.GetWithContext(ctx, path)
		return err
	}, func(err error) bool {
		f := g.outcome()
		return errors.Is(err, errFlavor) || f.tooLong || !retryable(f, err)
	})
	f := g.outcome()
	switch {
	case err == nil:
		return strings.TrimSpace(text), nil
	case context.Cause(ctx) != nil:
		return "", context.Cause(ctx)
	case errors.Is(err, errFlavor):
		e := strange("GCE", "an answer without the header Metadata-Flavor: Google")
		e.Err = err
		return "", e
	case f.tooLong:
		return "", tooLong("GCE")
	case !need && (f.status == http.StatusNotFound || f.status == http.StatusForbidden):
		return "", nil
	case f.status == http.StatusForbidden, f.status == http.StatusNotFound, f.status == http.StatusUnauthorized:
		return "", &Error{
			What: "cannot ask GCE's metadata service: it does not tell " + path + " (status " + http.StatusText(f.status) + ")",
			Because: []string{
				"GKE's metadata service, which pods see in place of the machine's, conceals it; requests through a proxy are refused, too",
			},
			Try: []string{"run in the host's network: hostNetwork: true"},
			Err: err,
		}
	case !retryable(f, err):
		return "", strange("GCE", path)
	}
	e := unreached("GCE", f)
	e.Err = err
	return "", e
}
