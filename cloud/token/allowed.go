// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/mask"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// mostSkew is how far the clocks may differ. A certificate that was just made counts from five minutes before
// (kubernetes, pkg/controller/certificates/signer), and a token's end is judged by the server's clock.
const mostSkew = 2 * time.Minute

// allowed finds out whether the cluster knows the token and lets it ask for a certificate.
func (t *join) allowed(ctx context.Context, v host.View, token bootstrapToken) error {
	c, err := kube.WithToken(v, t.server, t.roots, token.bearer(), t.via)
	if err != nil {
		return err
	}
	answer, date, err := c.Get(ctx, "/version")
	if skew := t.skew(v, date); skew != nil {
		return skew
	}
	if err != nil && !refused(err) && !errors.Is(err, kube.Unauthorized) {
		return t.explain(err)
	}
	var is struct{ GitVersion string }
	if err == nil && (json.Unmarshal(answer, &is) != nil || is.GitVersion == "") {
		return t.noAPI(errors.New("asked for its version, it does not answer as an API server does"))
	}
	if err := versionsFit(t.kubelet, is.GitVersion); err != nil {
		return err
	}
	user, groups, err := c.Whoami(ctx)
	switch {
	case errors.Is(err, kube.Unauthorized):
		return t.unauthorized(token, err)
	case err != nil && !refused(err):
		return t.explain(err)
	case err == nil && !slices.Contains(groups, "system:bootstrappers"):
		return t.noBootstrapper(strings.ReplaceAll(user, token.secret, mask.Mark))
	}
	if err := t.mayAsk(ctx, c, token); err != nil {
		return err
	}
	return t.nameFree(ctx, v, c)
}

func (t *join) unauthorized(token bootstrapToken, err error) error {
	return &trouble.Error{
		What:    fmt.Sprintf("cannot join: %s does not take the token %s in %s", t.server, token.id, t.tokenFile),
		Because: []string{trouble.OneLine(err.Error()), "the token has expired (after 24 hours by default), is wrong, or lacks the usage authentication"},
		Try:     []string{t.known(), t.another()},
		Err:     err,
	}
}

func (t *join) noBootstrapper(user string) error {
	return &trouble.Error{
		What:    fmt.Sprintf("cannot join: the token in %s is no bootstrap token; the cluster knows it as %s", t.tokenFile, trouble.OneLine(user)),
		Because: []string{"a certificate that is asked for by others than system:bootstrappers is not approved by the cluster itself"},
		Try:     []string{t.another()},
	}
}

// mayAsk asks whether the token may ask for a certificate.
func (t *join) mayAsk(ctx context.Context, c *kube.Client, token bootstrapToken) error {
	answer, err := c.Post(ctx, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", []byte(`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview",`+
		`"spec":{"resourceAttributes":{"group":"certificates.k8s.io","resource":"certificatesigningrequests","verb":"create"}}}`))
	if refused(err) {
		return nil // then the request itself will tell
	} else if err != nil {
		return t.explain(err)
	}
	var is struct{ Status struct{ Allowed bool } }
	if json.Unmarshal(answer, &is) != nil || is.Status.Allowed {
		return nil
	}
	return t.mayNot(token, nil)
}

// skew says that the clocks differ too much to use certificates; nil if they do not, or the server has not told its time.
func (t *join) skew(v host.View, server time.Time) error {
	if server.IsZero() {
		return nil
	}
	off := v.Now().Sub(server).Round(time.Second)
	way := "ahead of"
	if off < 0 {
		way, off = "behind", -off
	}
	if off <= mostSkew {
		return nil
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot join: this machine's clock is %v %s the API server's", off, way),
		Because: []string{"a new certificate would be outside its validity period, and every login would fail without naming the cause"},
		Try:     []string{"timedatectl set-ntp true, and wait until timedatectl says that the clock is synchronized", "or chronyc makestep, where chrony keeps the time"},
	}
}

// explain says why the API server cannot be talked to.
func (t *join) explain(err error) error {
	e := node.KubeError(err)
	if e == nil {
		return err
	}
	out := &trouble.Error{Because: slices.Clone(e.Because), Try: slices.Clone(e.Try), Err: err}
	name := t.address()
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	lookup := (*net.DNSError)(nil)
	switch {
	case e.Why == kube.Untrusted:
		out.What = fmt.Sprintf("cannot trust %s: %s", t.server, trouble.OneLine(e.Cause.Error()))
		out.Because = append(out.Because, "this machine trusts "+strings.Join(pins(t.rootsGiven()), ", "))
		out.Try = append(out.Try, "openssl s_client -connect "+t.address()+" -showcerts, which shows who answers", "if that is a proxy, write no_proxy = [\""+name+"\"] in [proxy]")
	case errors.As(err, &lookup) || strings.Contains(err.Error(), "no such host"):
		out.What = fmt.Sprintf("cannot find %s: no name server knows it", name)
		out.Try = append(out.Try, "getent hosts "+name, "fix /etc/resolv.conf, or the name in server in [join]")
	case e.Why == kube.Unreachable:
		out.What = fmt.Sprintf("cannot reach %s: %s", t.server, strings.Replace(trouble.OneLine(e.Cause.Error()), t.server+" does", "it does", 1))
		out.Try = append(out.Try, "curl -kv "+t.server+"/version, from this machine", "a firewall, a security group or a route may be in the way")
	case e.Status >= 300 && e.Status < 400 || e.Why == kube.Missing || e.Why == kube.Refused:
		return t.noAPI(e.Cause)
	default:
		out.What = fmt.Sprintf("cannot join by %s: %s", t.server, trouble.OneLine(e.Error()))
	}
	t.proxied(out, e.Why, name)
	return out
}

// proxied tells how a proxy is involved.
func (t *join) proxied(out *trouble.Error, why kube.Why, name string) {
	if t.via.HTTPS == "" && t.via.HTTP == "" || why != kube.Unreachable && why != kube.Untrusted {
		return
	}
	u, err := url.Parse(t.server)
	if err != nil {
		return
	}
	proxy, err := (&httpproxy.Config{HTTPProxy: t.via.HTTP, HTTPSProxy: t.via.HTTPS, NoProxy: strings.Join(t.via.No, ",")}).ProxyFunc()(u)
	switch {
	case err != nil:
	case proxy != nil:
		out.Because = append(out.Because, "it was asked through the proxy "+proxy.Redacted()+", as [proxy] says")
		out.Try = append(out.Try, fmt.Sprintf("if the API server is reached directly, write no_proxy = [%q] in [proxy]", name))
	default:
		out.Because = append(out.Because, "it was asked directly: no_proxy in [proxy] has it")
	}
}

// noAPI says that something else than an API server answers.
func (t *join) noAPI(err error) error {
	return &trouble.Error{
		What:    fmt.Sprintf("cannot join by %s: it is no Kubernetes API server", t.server),
		Because: []string{trouble.OneLine(err.Error())},
		Try:     []string{"kubectl cluster-info, where kubectl works, which prints the right server for [join]"},
	}
}

// rootsGiven is whom we trust so far.
func (t *join) rootsGiven() []byte {
	if t.roots != nil {
		return t.roots
	}
	return t.ca
}

// address is the server as HOST:PORT.
func (t *join) address() string {
	u, err := url.Parse(t.server)
	if err != nil || u.Host == "" {
		return t.server
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "443")
	}
	return u.Host
}

// client looks, by the token.
func (t *join) client(v host.View, token bootstrapToken) *kube.Client {
	c, err := kube.WithToken(v, t.server, t.roots, token.bearer(), t.via)
	if err != nil {
		return nil // try has made one just so
	}
	return c
}

// refused says that the server answers, and has no such thing for us.
func refused(err error) bool { return errors.Is(err, kube.Forbidden) || errors.Is(err, kube.Missing) }

// configMap reads a ConfigMap.
func configMap(ctx context.Context, c *kube.Client, namespace, name string) (map[string]string, error) {
	data, _, err := configMapDated(ctx, c, namespace, name)
	return data, err
}

func configMapDated(ctx context.Context, c *kube.Client, namespace, name string) (map[string]string, time.Time, error) {
	answer, date, err := c.Get(ctx, "/api/v1/namespaces/"+namespace+"/configmaps/"+name)
	if err != nil {
		return nil, date, err
	}
	var is struct {
		Kind string
		Data map[string]string
	}
	if err := json.Unmarshal(answer, &is); err != nil || is.Kind != "ConfigMap" {
		return nil, date, &kube.Error{Verb: "read", What: "the ConfigMap " + name, Why: kube.Refused, Cause: errors.New("the answer is none of an API server")}
	}
	return is.Data, date, nil
}
