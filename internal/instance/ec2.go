// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go"
	"github.com/gpuadm/gpuadm/internal/host"
)

// imdsDoor asks EC2's metadata service, by its version 2 alone: version 1 also answers an attacker who makes a program of the machine
// fetch a URL. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
type imdsDoor struct {
	*door
	api    *imds.Client
	silent int // how often the server accepted the request for a token and did not answer
	id     string
}

// openIMDS makes ready to ask. id is the instance's where the firmware has told it, for the words of an error.
func openIMDS(v host.View, id string) (*imdsDoor, error) {
	d, err := open(v, host.Web{}, metadataMost)
	if err != nil {
		return nil, err
	}
	return &imdsDoor{door: d, id: id, api: imds.New(imds.Options{
		HTTPClient: d.client(), Retryer: aws.NopRetryer{}, EnableFallback: aws.FalseTernary,
	})}, nil
}

// identity asks for the document that says who the machine is.
func (e *imdsDoor) identity(ctx context.Context) (*Instance, error) {
	var doc imds.InstanceIdentityDocument
	err := e.try(ctx, func(ctx context.Context) error {
		out, err := e.api.GetInstanceIdentityDocument(ctx, nil)
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
		return nil, strange("instanceId")
	case !plain(doc.InstanceType):
		return nil, strange("instanceType")
	case !plain(doc.Region):
		return nil, strange("region")
	}
	return &Instance{
		ID: doc.InstanceID, Type: doc.InstanceType, Region: doc.Region, Zone: orNone(doc.AvailabilityZone),
		PrivateIP: address([]string{doc.PrivateIP}),
	}, nil
}

// tags are the instance's, where it is allowed to see them: InstanceMetadataTags.
func (e *imdsDoor) tags(ctx context.Context) (map[string]string, error) {
	names, err := e.text(ctx, "tags/instance/")
	if err != nil || names == "" {
		return nil, err
	}
	tags := map[string]string{}
	for _, name := range strings.Split(names, "\n") {
		if !plain(name) || strings.ContainsAny(name, "?#%") || len(tags) == 50 { // EC2 allows no more, and only plain names here
			continue
		}
		if tags[name], err = e.text(ctx, "tags/instance/"+name); err != nil {
			return nil, err
		}
	}
	return keep(tags), nil
}

// userCluster reads the cluster out of the user data. All else in there may be secret, and is not kept.
func (e *imdsDoor) userCluster(ctx context.Context) (c *Cluster, err error) {
	err = e.try(ctx, func(ctx context.Context) error {
		out, err := e.api.GetUserData(ctx, nil)
		if err != nil {
			return err
		}
		defer out.Content.Close()
		data, err := io.ReadAll(out.Content)
		if err == nil {
			c = nodeConfig(data)
		}
		return err
	})
	if errors.Is(err, errMissing) {
		return nil, nil
	}
	return c, err
}

// text asks for one word or list; "" where the service does not know it.
func (e *imdsDoor) text(ctx context.Context, path string) (string, error) {
	var text string
	err := e.try(ctx, func(ctx context.Context) error {
		out, err := e.api.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
		if err != nil {
			return err
		}
		defer out.Content.Close()
		data, err := io.ReadAll(out.Content)
		text = strings.TrimSpace(string(data))
		return err
	})
	if errors.Is(err, errMissing) {
		return "", nil
	}
	return text, err
}

// errMissing is what an *trouble.Error wraps where the service answers and does not know what it was asked for.
var errMissing = errors.New("not there")

// try asks until there is an answer, or it is clear that there will be none, and explains why.
func (e *imdsDoor) try(ctx context.Context, do func(context.Context) error) error {
	refused := 0
	err := tries(ctx, do, func(err error) bool {
		f := e.outcome()
		switch {
		case f.method == http.MethodPut && f.connected && f.status == 0:
			e.silent++
			return e.silent == 3
		case f.status == http.StatusUnauthorized:
			refused++
			return refused == 2 // the token has run out: the SDK has thrown it away, and gets another one
		}
		return !retryable(f, err)
	})
	if err == nil {
		return nil
	}
	return e.explain(ctx, err)
}

// retryable says whether the same request may go well a moment later.
func retryable(f outcome, err error) bool {
	var parsing *smithy.DeserializationError
	switch {
	case f.tooLong || errors.As(err, &parsing):
		return false
	case f.status == 0 || f.status == http.StatusTooManyRequests || f.status >= 500:
		return true
	}
	return f.status == http.StatusOK && brokenOff(err)
}

// brokenOff says whether an answer began well and did not come in full.
func brokenOff(err error) bool {
	var network net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network)
}

// orNone is a word, or none where it is no word.
func orNone(s string) string {
	if plain(s) {
		return s
	}
	return ""
}
