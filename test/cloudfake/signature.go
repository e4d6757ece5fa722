// SPDX-License-Identifier: Apache-2.0

package cloudfake

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// amzDate is how AWS writes a time. Source:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
const amzDate = "20060102T150405Z"

func keys() aws.Credentials {
	return aws.Credentials{
		AccessKeyID:     AccessKey,
		SecretAccessKey: SecretKey,
		SessionToken:    SessionToken,
	}
}

// signature checks that a request is signed with the role's keys, by signing it once more; "" if it
// is.
func (f *Fake) signature(r *http.Request) string {
	if service(r) == "sts" {
		return "" // signed in its URL: verify
	}

	authorization := r.Header.Get("Authorization")
	fields := map[string]string{}
	for _, field := range strings.Split(strings.TrimPrefix(authorization, "AWS4-HMAC-SHA256 "), ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[k] = v
	}

	scope := strings.Split(fields["Credential"], "/")
	at, err := time.Parse(amzDate, r.Header.Get("X-Amz-Date"))
	switch {
	case len(scope) != 5 || err != nil:
		return "Missing Authentication Token"
	case scope[0] != AccessKey:
		return "The security token included in the request is invalid."
	case scope[3] != service(r) || scope[2] != f.Machine.Region:
		return "Credential should be scoped to a valid region and service."
	case r.Header.Get("X-Amz-Security-Token") != SessionToken:
		return "The security token included in the request is invalid"
	}

	const margin = 5 * time.Minute
	if f.Now != nil && f.now().Sub(at).Abs() > margin {
		earliest := f.now().Add(-margin).UTC()
		return fmt.Sprintf("Signature expired: %s is now earlier than %s", at.Format(amzDate), earliest.Format(amzDate))
	}
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	address := "https://" + host(r) + r.URL.RequestURI()
	rebuilt, err := http.NewRequest(r.Method, address, bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	for _, name := range strings.Split(fields["SignedHeaders"], ";") {
		if name != "host" && name != "content-length" {
			rebuilt.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}

	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	if err := v4.NewSigner().SignHTTP(context.Background(), keys(), rebuilt, digest, scope[3], scope[2], at); err != nil {
		return err.Error()
	}
	if rebuilt.Header.Get("Authorization") != authorization {
		return "The request signature we calculated does not match the signature you provided."
	}

	return ""
}

// verify checks a GetCallerIdentity signed in its URL, for a cluster, and returns when it was
// signed.
func (f *Fake) verify(signed, cluster string) (time.Time, error) {
	u, err := url.Parse(signed)
	if err != nil {
		return time.Time{}, errors.New("the token is not a URL")
	}

	q := u.Query()
	at, err := time.Parse(amzDate, q.Get("X-Amz-Date"))
	switch {
	case u.Scheme != "https" || u.Host != "sts."+f.Machine.Region+".amazonaws.com" || u.Path != "/":
		return at, errors.New("the token's URL is not STS's")
	case q.Get("Action") != "GetCallerIdentity" || err != nil:
		return at, errors.New("the token's URL asks for something else")
	case q.Get("X-Amz-Expires") != "60":
		return at, errors.New("the token's URL has no X-Amz-Expires of a minute")
	case q.Get("X-Amz-SignedHeaders") != "host;x-k8s-aws-id":
		return at, errors.New("the token is not for a cluster")
	}

	bare := url.Values{"Action": q["Action"], "Version": q["Version"], "X-Amz-Expires": q["X-Amz-Expires"]}
	rebuilt, err := http.NewRequest(http.MethodGet, "https://"+u.Host+"/?"+bare.Encode(), nil)
	if err != nil {
		return at, err
	}
	rebuilt.Header.Set("X-K8s-Aws-Id", cluster)

	none := sha256.Sum256(nil)
	digest := hex.EncodeToString(none[:])
	expected, _, err := v4.NewSigner().PresignHTTP(context.Background(), keys(), rebuilt, digest, "sts", f.Machine.Region, at)
	if err != nil {
		return at, err
	}
	expectedURL, err := url.Parse(expected)
	if err != nil || expectedURL.Query().Get("X-Amz-Signature") != q.Get("X-Amz-Signature") {
		return at, errors.New("the token's signature does not match")
	}

	return at, nil
}
