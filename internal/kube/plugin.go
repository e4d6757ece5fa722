// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
)

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
func (s execSetting) plugin(resolve func(string) string) (*plugin, error) {
	switch {
	case s.Command == "":
		return nil, errors.New("its exec names no command")
	case s.APIVersion != execGroup+"v1" && s.APIVersion != execGroup+"v1beta1":
		const unknown = "its exec has apiVersion %q, and %sv1 and v1beta1 are known"
		return nil, fmt.Errorf(unknown, clean(s.APIVersion, 60), execGroup)
	case s.Mode == "Always":
		return nil, errors.New("its exec needs an interactive terminal (interactiveMode: Always)")
	}

	if strings.Contains(s.Command, "/") {
		s.Command = resolve(s.Command)
	}
	p := &plugin{
		version: s.APIVersion,
		argv:    append([]string{s.Command}, s.Args...),
		hint:    clean(s.InstallHint, 300),
		cluster: s.ClusterInfo,
	}
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

	soon := l.view.Now().Add(10 * time.Second)
	if got != nil && (got.expires.IsZero() || soon.Before(got.expires)) {
		return got, nil
	}

	got, err := l.signed(ctx)
	if got == nil || err != nil {
		got, err = l.runPlugin(ctx)
	}
	if err != nil {
		return nil, l.noCredentials(err)
	}

	l.mu.Lock()
	l.got = got
	l.mu.Unlock()
	return got, nil
}

// noCredentials returns the fault for a plugin that gives no credentials.
func (l *login) noCredentials(err error) *fault {
	e := &fault{why: Unauthorized, cause: fmt.Errorf("no credentials: %w", err)}
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.exec.hint != "":
		e.try = []string{l.exec.hint}
	case !errors.As(err, new(host.Later)):
		e.try = []string{"run the exec command of " + cmp.Or(l.from, "the kubeconfig") + " by hand"}
	}

	return e
}

// runPlugin runs the plugin and reads its answer.
func (l *login) runPlugin(ctx context.Context) (*credential, error) {
	env := append([]string{l.execInfo()}, l.exec.env...)
	out, err := l.view.AskWith(ctx, env, l.exec.argv...)
	if err != nil {
		return nil, err
	}
	return l.exec.read(out)
}

// signed returns the EKS token that the plugin would make for the machine's role: gpuadm makes it
// in milliseconds, and Python's aws takes a second of CPU time. nil if the plugin would, or might,
// do something else.
func (l *login) signed(ctx context.Context) (*credential, error) {
	p := l.exec
	cluster, region := instance.TokenOf(p.argv)
	if cluster == "" || len(p.env) > 0 || instance.Detect(l.view).Name != "aws" {
		return nil, nil
	}
	// The folder has keys, a profile or another role, which the program prefers.
	if _, err := l.view.Stat("/root/.aws"); !host.NotExist(err) {
		return nil, nil
	}

	token, expires, err := instance.Token(ctx, l.view, cluster, region)
	return &credential{token: token, expires: expires}, err
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
		spec["cluster"] = map[string]any{
			"server":                     l.server,
			"certificate-authority-data": l.roots,
		}
	}

	info, err := json.Marshal(map[string]any{
		"apiVersion": l.exec.version,
		"kind":       "ExecCredential",
		"spec":       spec,
	})
	if err != nil {
		return "KUBERNETES_EXEC_INFO="
	}
	return "KUBERNETES_EXEC_INFO=" + string(info)
}

// read reads a plugin's answer. Its errors quote nothing of it.
func (p *plugin) read(out []byte) (*credential, error) {
	var answer struct {
		APIVersion string
		Kind       string
		Status     struct {
			Token               string
			ExpirationTimestamp *time.Time
		}
	}
	err := json.Unmarshal(out, &answer)
	switch {
	case err != nil || answer.Kind != "ExecCredential":
		return nil, fmt.Errorf("%s answered, but not with an ExecCredential", p.argv[0])
	case answer.APIVersion != p.version:
		return nil, fmt.Errorf("%s answered with another version than %s", p.argv[0], p.version)
	case answer.Status.Token == "":
		// A plugin may give a certificate in its place; those of the clouds give tokens.
		return nil, fmt.Errorf("%s answered without a token", p.argv[0])
	}

	got := &credential{token: answer.Status.Token}
	if expires := answer.Status.ExpirationTimestamp; expires != nil {
		got.expires = *expires
	}
	return got, nil
}
