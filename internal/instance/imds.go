// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go"
	"github.com/gpuadm/gpuadm/internal/host"
)

const (
	// patience is how long gpuadm waits for a metadata service. At boot it may be 20 s late: routes
	// and firewalls come first.
	patience = 25 * time.Second
	// firstLimit is the limit of the first try, laterLimit of each later one. The service runs in
	// the machine's own hypervisor and answers within milliseconds.
	firstLimit = time.Second
	laterLimit = 2 * time.Second
)

// imdsClient asks EC2's metadata service, only by version 2: version 1 also answers an attacker who
// makes a program on the machine fetch a URL.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
type imdsClient struct {
	*transport
	api *imds.Client
	id  string // of the instance, from the firmware; for error messages

	// silent counts the requests for a token that the service accepted and did not answer.
	silent int
}

// openIMDS prepares the requests. id is the instance's id from the firmware, for error messages.
func openIMDS(v host.View, id string) (*imdsClient, error) {
	t, err := newTransport(v, host.Web{}, maxMetadata)
	if err != nil {
		return nil, err
	}
	api := imds.New(imds.Options{
		HTTPClient:     t.client(),
		Retryer:        aws.NopRetryer{},
		EnableFallback: aws.FalseTernary,
	})
	return &imdsClient{transport: t, api: api, id: id}, nil
}

// identity asks for the instance identity document.
func (m *imdsClient) identity(ctx context.Context) (*Instance, error) {
	var doc imds.InstanceIdentityDocument
	err := m.try(ctx, func(ctx context.Context) error {
		out, err := m.api.GetInstanceIdentityDocument(ctx, nil)
		if err == nil {
			doc = out.InstanceIdentityDocument
		}
		return err
	})
	if err != nil {
		return nil, err
	}

	switch {
	case !ec2ID().MatchString(doc.InstanceID):
		return nil, malformedAnswer("instanceId")
	case !plain(doc.InstanceType):
		return nil, malformedAnswer("instanceType")
	case !plain(doc.Region):
		return nil, malformedAnswer("region")
	}

	return &Instance{
		ID:        doc.InstanceID,
		Type:      doc.InstanceType,
		Region:    doc.Region,
		Zone:      plainOrNone(doc.AvailabilityZone),
		PrivateIP: address(doc.PrivateIP),
	}, nil
}

// ipv6 returns the first IPv6 address of the instance's first interface, "" if it has none.
func (m *imdsClient) ipv6(ctx context.Context) (string, error) {
	text, err := m.text(ctx, "mac")
	if err != nil {
		return "", err
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return "", nil // an interface without a valid MAC has no addresses to ask for
	}

	text, err = m.text(ctx, "network/interfaces/macs/"+mac.String()+"/ipv6s")
	first, _, _ := strings.Cut(text, "\n")
	return address(first), err
}

// maxTags is how many tags EC2 allows on an instance.
const maxTags = 50

// tags returns the instance's tags, if it may read them: InstanceMetadataTags.
func (m *imdsClient) tags(ctx context.Context) (map[string]string, error) {
	names, err := m.text(ctx, "tags/instance/")
	if err != nil || names == "" {
		return nil, err
	}

	tags := map[string]string{}
	for _, name := range strings.Split(names, "\n") {
		inPath := plain(name) && !strings.ContainsAny(name, "?#%") // EC2 allows no other names here
		if !inPath || len(tags) == maxTags {
			continue
		}
		tags[name], err = m.text(ctx, "tags/instance/"+name)
		if err != nil {
			return nil, err
		}
	}

	return fitForOutput(tags), nil
}

// userCluster reads the cluster from the user data. gpuadm discards the rest, which may have
// secrets.
func (m *imdsClient) userCluster(ctx context.Context) (*Cluster, error) {
	data, err := m.read(ctx, func(ctx context.Context) (io.ReadCloser, error) {
		out, err := m.api.GetUserData(ctx, nil)
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	})
	if err != nil {
		return nil, err
	}
	return nodeConfig(data), nil
}

// text asks for one word or list; "" if the service does not have it.
func (m *imdsClient) text(ctx context.Context, path string) (string, error) {
	data, err := m.read(ctx, func(ctx context.Context) (io.ReadCloser, error) {
		out, err := m.api.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
		if err != nil {
			return nil, err
		}
		return out.Content, nil
	})
	return strings.TrimSpace(string(data)), err
}

// read asks for a value and reads all of it; nil if the service does not have it.
func (m *imdsClient) read(
	ctx context.Context, ask func(context.Context) (io.ReadCloser, error),
) ([]byte, error) {
	var data []byte
	err := m.try(ctx, func(ctx context.Context) error {
		content, err := ask(ctx)
		if err != nil {
			return err
		}
		defer content.Close()
		data, err = io.ReadAll(content)
		return err
	})
	if errors.Is(err, errMissing) {
		return nil, nil
	}
	return data, err
}

// errMissing is the cause of a *trouble.Error for a value that the service does not have.
var errMissing = errors.New("not there")

// try asks until there is an answer or a retry is useless, and explains why.
func (m *imdsClient) try(ctx context.Context, ask func(context.Context) error) error {
	refused := 0
	final := func(err error) bool {
		last := m.outcome()
		tokenUnanswered := last.method == http.MethodPut && last.connected && last.status == 0
		switch {
		case tokenUnanswered:
			m.silent++
			return m.silent == 3
		case last.status == http.StatusUnauthorized:
			refused++
			return refused == 2 // the token has expired: the SDK discards it and gets another
		}

		return !retryable(last, err)
	}

	err := untilAnswered(ctx, ask, final)
	if err != nil {
		return m.explain(ctx, err)
	}
	return nil
}

// untilAnswered calls ask until it succeeds, final says that a retry is useless, or patience ends.
// The pauses grow to two seconds with jitter, so that a thousand machines that start together do
// not ask together.
func untilAnswered(ctx context.Context, ask func(context.Context) error, final func(error) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	limit := firstLimit
	pause := 200 * time.Millisecond
	for {
		once, done := context.WithTimeout(ctx, limit)
		err := ask(once)
		done()
		if err == nil || final(err) {
			return err
		}

		if host.Pause(ctx, pause/2+rand.N(pause/2)) != nil {
			return err
		}
		limit = laterLimit
		pause = min(2*pause, 2*time.Second)
	}
}

// retryable says whether the same request may succeed a moment later.
func retryable(last outcome, err error) bool {
	var parsing *smithy.DeserializationError
	switch {
	case last.tooLong || errors.As(err, &parsing):
		return false
	case last.status == 0 || last.status == http.StatusTooManyRequests || last.status >= 500:
		return true
	}

	return last.status == http.StatusOK && brokenOff(err)
}

// brokenOff says whether an answer was cut short.
func brokenOff(err error) bool {
	isCut := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
	var network net.Error
	return isCut || errors.As(err, &network)
}
