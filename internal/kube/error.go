// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Why is a kind of failure; kinds differ by their remedy. errors.Is(err, kube.Missing) finds it in
// this package's errors, which all are *trouble.Error.
type Why string

// The kinds.
const (
	Broken       Why = "broken"       // the kubeconfig, or a file that it names, cannot be used
	Unreachable  Why = "unreachable"  // no answer at the server's address
	Untrusted    Why = "untrusted"    // the server at that address has an untrusted certificate
	Unauthorized Why = "unauthorized" // the server does not accept the credentials (401), or there are none
	Forbidden    Why = "forbidden"    // the server knows the user, who lacks the right (403)
	Missing      Why = "missing"      // there is no such object (404), or no kubeconfig yet
	Conflict     Why = "conflict"     // another client changed the object meanwhile (409): look again
	Busy         Why = "busy"         // the server answers, but not now (429, 5xx), after all tries
	Refused      Why = "refused"      // the server calls the request invalid (400, 422, ...), or its answer cannot be parsed
	Slow         Why = "slow"         // the server has begun its answer, and not ended it in time
	Expired      Why = "expired"      // the client certificate has expired, is not valid yet, or does not exist yet
)

func (w Why) Error() string { return string(w) }

// fault is the failure of a try, without the verb and the object of the request.
type fault struct {
	why     Why
	status  int // HTTP status, 0 if there was no answer
	cause   error
	because []string
	try     []string
	denial  denial

	waits bool          // the caller may wait, whatever why is
	retry bool          // a retry may succeed
	after time.Duration // the wait that the server asks for before a retry
}

// to completes a fault with the request's verb and object.
func (f *fault) to(verb, what string) *trouble.Error {
	causes := []error{f.why, f.cause}
	if f.denial != nil {
		causes = append(causes, f.denial)
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot %s %s: %v", verb, what, f.cause), Because: f.because, Try: f.try,
		Passing: f.waits || slices.Contains([]Why{Unreachable, Busy, Conflict, Missing, Slow}, f.why),
		Err:     errors.Join(causes...),
	}
}

// denial has the causes that an admission policy adds to its denial; RBAC and NodeRestriction add
// none. Sources: kubernetes, apiserver, pkg/admission/plugin/policy/validating/dispatcher.go
// (Dispatch), pkg/endpoints/handlers/responsewriters/errors.go (Forbidden).
type denial []string

func (d denial) Error() string { return strings.Join(d, "; ") }

// Denied says whether an admission policy has denied the request, and has put this code into its
// message.
func Denied(err error, code string) bool {
	d := denial{}
	return errors.As(err, &d) && slices.ContainsFunc(d, func(message string) bool { return strings.Contains(message, code) })
}

// worded is a cause in gpuadm's words, with the original error.
type worded struct {
	text string
	err  error
}

func (s worded) Error() string { return s.text }
func (s worded) Unwrap() error { return s.err }

// fail returns the error of a call, without secrets.
func (c *Client) fail(r call, f *fault, tries int) error {
	text := f.cause.Error()
	if tries > 1 {
		text += fmt.Sprintf(" (after %d tries)", tries)
	}
	f.cause = worded{c.login.hide(clean(text, 1000)), f.cause}
	for _, texts := range [][]string{f.because, f.try} {
		for i := range texts {
			texts[i] = c.login.hide(texts[i])
		}
	}
	return f.to(r.verb, r.what)
}

// clean turns a foreign text into one line of printable characters, and cuts it.
func clean(s string, limit int) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)), " ")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}

// plugin is a program that returns credentials, as kubelet uses it on EKS and GKE:
// https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
type plugin struct {
	version string // of client.authentication.k8s.io
	argv    []string
	env     []string
	hint    string // how to install it
	cluster bool   // it needs the cluster as input
}

// credential is a plugin's answer.
type credential struct {
	token   string
	expires time.Time // zero: valid until this process ends
}

const execGroup = "client.authentication.k8s.io/"

// plugin checks a kubeconfig's settings of a plugin. A command with a slash is relative to the
// kubeconfig.
func (s execSetting) plugin(at func(string) string) (*plugin, error) {
	p := &plugin{version: s.APIVersion, hint: clean(s.InstallHint, 300), cluster: s.ClusterInfo}
	switch {
	case s.Command == "":
		return nil, errors.New("its exec names no command")
	case s.APIVersion != execGroup+"v1" && s.APIVersion != execGroup+"v1beta1":
		return nil, fmt.Errorf("its exec has apiVersion %q, and %sv1 and v1beta1 are known", clean(s.APIVersion, 60), execGroup)
	case s.Mode == "Always":
		return nil, errors.New("its exec needs an interactive terminal (interactiveMode: Always)")
	}
	if strings.Contains(s.Command, "/") {
		s.Command = at(s.Command)
	}
	p.argv = append([]string{s.Command}, s.Args...)
	for _, e := range s.Env {
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") || strings.Contains(e.Value, "\x00") {
			return nil, errors.New("its exec has an env entry that cannot be one")
		}
		p.env = append(p.env, e.Name+"="+e.Value)
	}
	return p, nil
}

// ask returns the plugin's credential, and asks it again shortly before that expires.
func (l *login) ask(ctx context.Context) (*credential, *fault) {
	l.mu.Lock()
	got := l.got
	l.mu.Unlock()
	if got != nil && (got.expires.IsZero() || l.view.Now().Add(10*time.Second).Before(got.expires)) {
		return got, nil
	}
	got, err := l.signed(ctx)
	if got == nil || err != nil {
		var out []byte
		if out, err = l.view.AskWith(ctx, append([]string{l.execInfo()}, l.exec.env...), l.exec.argv...); err == nil {
			got, err = l.exec.read(out)
		}
	}
	if err != nil {
		e := &fault{why: Unauthorized, cause: fmt.Errorf("no credentials: %w", err)}
		if errors.Is(err, fs.ErrNotExist) && l.exec.hint != "" {
			e.try = []string{l.exec.hint}
		} else if !errors.As(err, new(host.Later)) {
			e.try = []string{"run the exec command of " + cmp.Or(l.from, "the kubeconfig") + " by hand"}
		}
		return nil, e
	}
	l.mu.Lock()
	l.got = got
	l.mu.Unlock()
	return got, nil
}

// signed returns the EKS token that the plugin would make for the machine's role: gpuadm makes it
// in milliseconds, and Python's aws takes a second of CPU time. nil if the plugin would, or might,
// do something else.
func (l *login) signed(ctx context.Context) (*credential, error) {
	p := l.exec
	cluster, region := p.eks()
	if cluster == "" || len(p.env) > 0 || instance.Detect(l.view).Name != "aws" {
		return nil, nil
	}
	if _, err := l.view.Stat("/root/.aws"); !host.NotExist(err) { // keys, a profile or another role, which the program prefers
		return nil, nil
	}
	token, expires, err := instance.Token(ctx, l.view, cluster, region)
	return &credential{token: token, expires: expires}, err
}

// eks returns the cluster and the region if the plugin makes tokens for EKS and is called as EKS's
// own images call it; else "".
// Sources: awslabs/amazon-eks-ami, nodeadm/internal/kubelet/kubeconfig.template.yaml and, before
// its pull 2645, templates/al2/runtime/kubelet-kubeconfig; aws/aws-cli,
// awscli/customizations/eks/get_token.py; kubernetes-sigs/aws-iam-authenticator.
func (p *plugin) eks() (cluster, region string) {
	if a := p.argv; len(a) == 7 && path.Base(a[0]) == "aws" && slices.Equal(a[1:4], []string{"eks", "get-token", "--cluster-name"}) && a[5] == "--region" {
		return a[4], a[6]
	} else if len(a) == 6 && path.Base(a[0]) == "aws-iam-authenticator" && slices.Equal(a[1:3], []string{"token", "-i"}) && a[4] == "--region" {
		return a[3], a[5]
	}
	return "", ""
}

// forget makes the next request ask the plugin again; false if that would change nothing.
func (l *login) forget() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := l.got != nil
	l.got = nil
	return had
}

// execInfo returns the plugin's input: the wanted form of the answer and, if the plugin needs it,
// the cluster.
func (l *login) execInfo() string {
	spec := map[string]any{"interactive": false}
	if l.exec.cluster {
		spec["cluster"] = map[string]any{"server": l.server, "certificate-authority-data": l.roots}
	}
	info, err := json.Marshal(map[string]any{"apiVersion": l.exec.version, "kind": "ExecCredential", "spec": spec})
	if err != nil {
		return "KUBERNETES_EXEC_INFO="
	}
	return "KUBERNETES_EXEC_INFO=" + string(info)
}

// read reads a plugin's answer. Its errors quote nothing of it.
func (p *plugin) read(out []byte) (*credential, error) {
	var answer struct {
		APIVersion, Kind string
		Status           struct {
			Token               string
			ExpirationTimestamp *time.Time
		}
	}
	s := &answer.Status
	switch err := json.Unmarshal(out, &answer); {
	case err != nil || answer.Kind != "ExecCredential":
		return nil, fmt.Errorf("%s answered, but not with an ExecCredential", p.argv[0])
	case answer.APIVersion != p.version:
		return nil, fmt.Errorf("%s answered with another version than %s", p.argv[0], p.version)
	case s.Token == "": // a plugin may give a certificate in its place; those of the clouds give tokens
		return nil, fmt.Errorf("%s answered without a token", p.argv[0])
	}
	got := &credential{token: s.Token}
	if s.ExpirationTimestamp != nil {
		got.expires = *s.ExpirationTimestamp
	}
	return got, nil
}
