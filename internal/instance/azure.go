// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// azureInstance is asked in a version that all regions know and that has priority and tagsList.
// Source: https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
const azureInstance = "http://" + serviceAt + "/metadata/instance?api-version=2021-02-01"

// azure asks Azure's metadata service, by its fixed address and never through a proxy.
type azure struct{ *door }

func askAzure(ctx context.Context, v host.View) (*Instance, error) {
	d, err := open(v, host.Web{}, metadataMost)
	if err != nil {
		return nil, err
	}
	a := azure{d}
	var data []byte
	err = tries(ctx, func(ctx context.Context) error {
		data, err = a.get(ctx, azureInstance)
		return err
	}, func(err error) bool {
		f := a.outcome()
		return f.status != http.StatusGone && !retryable(f, err) // 410: the service is being updated
	})
	if err != nil {
		return nil, a.explain(ctx, err)
	}
	i, err := azureVM(data)
	if err != nil {
		return nil, err
	}
	return i, nil
}

// azureSays is what of the service's description is read. User data and keys beside it are not kept.
type azureSays struct {
	Compute struct {
		Location, Name, VMID, VMSize, Zone, Priority string
	}
}

// azureVM reads what the service says of the machine.
func azureVM(data []byte) (*Instance, error) {
	var reply azureSays
	if err := json.Unmarshal(data, &reply); err != nil {
		e := strange("Azure", "the description of the machine")
		e.Err = err
		return nil, e
	}
	c := reply.Compute
	switch {
	case !plain(c.VMID):
		return nil, strange("Azure", "vmId")
	case !plain(c.VMSize):
		return nil, strange("Azure", "vmSize")
	case !plain(c.Location):
		return nil, strange("Azure", "location")
	}
	return &Instance{
		Cloud: "azure", ID: strings.ToLower(c.VMID), Type: c.VMSize, Region: c.Location, Zone: orNone(c.Zone), Name: orNone(c.Name),
		Spot: c.Priority == "Spot",
	}, nil
}

// errStatus is what get says of an answer that is not an answer; outcome knows which.
var errStatus = errors.New("the service does not tell")

func (a azure) get(ctx context.Context, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Metadata", "true")
	answer, err := a.client().Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		return nil, errStatus
	}
	return data, err
}

func (a azure) explain(ctx context.Context, err error) error {
	f := a.outcome()
	var e *Error
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case f.tooLong:
		return tooLong("Azure")
	case f.status == http.StatusForbidden, f.status == http.StatusUnauthorized:
		e = &Error{
			What:    fmt.Sprintf("cannot ask Azure's metadata service: it refused the request (status %d)", f.status),
			Because: []string{"on AKS with IMDS restriction, pods outside the host's network are refused; so are requests through a proxy"},
			Try:     []string{"run in the host's network: hostNetwork: true"},
		}
	case f.status == http.StatusNotFound, f.status == http.StatusBadRequest, f.status == http.StatusMethodNotAllowed:
		e = &Error{
			What:    fmt.Sprintf("cannot ask Azure's metadata service: the server that answers does not know the request (status %d)", f.status),
			Because: []string{"it is not Azure's service that answers at " + serviceAt + ": Azure Stack, or another program that takes the requests"},
			Try:     []string{"iptables-save | grep " + serviceAt + "    shows who takes them"},
		}
	case !retryable(f, err) && f.status != http.StatusGone:
		e = strange("Azure", "the description of the machine")
	default:
		e = unreached("Azure", f)
	}
	e.Err = err
	return e
}
