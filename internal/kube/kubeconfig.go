// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/host"
)

// kubeconfig has the fields that gpuadm reads. gpuadm does not use clientcmd's loader, whose errors
// quote the file's content.
// Source: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
type kubeconfig struct {
	Current  string         `yaml:"current-context"`
	Contexts []contextEntry `yaml:"contexts"`
	Clusters []clusterEntry `yaml:"clusters"`
	Users    []userEntry    `yaml:"users"`
}

type contextEntry struct {
	Name    string `yaml:"name"`
	Context struct {
		Cluster string `yaml:"cluster"`
		User    string `yaml:"user"`
	} `yaml:"context"`
}

type clusterEntry struct {
	Name    string  `yaml:"name"`
	Cluster cluster `yaml:"cluster"`
}

type userEntry struct {
	Name string      `yaml:"name"`
	User Credentials `yaml:"user"`
}

type cluster struct {
	Server     string `yaml:"server"`
	CAFile     string `yaml:"certificate-authority"`
	CA         string `yaml:"certificate-authority-data"`
	SkipVerify bool   `yaml:"insecure-skip-tls-verify"`
	TLSName    string `yaml:"tls-server-name"`
	Proxy      string `yaml:"proxy-url"`
}

// Credentials are what a kubeconfig says of a user.
type Credentials struct {
	CertFile     string       `yaml:"client-certificate"`
	Cert         string       `yaml:"client-certificate-data"`
	KeyFile      string       `yaml:"client-key"`
	Key          string       `yaml:"client-key-data"`
	Token        string       `yaml:"token"`
	TokenFile    string       `yaml:"tokenFile"`
	As           string       `yaml:"as"`
	Username     string       `yaml:"username"`
	Password     string       `yaml:"password"`
	AuthProvider *struct{}    `yaml:"auth-provider"`
	Exec         *execSetting `yaml:"exec"`
}

type execSetting struct {
	APIVersion string   `yaml:"apiVersion"`
	Command    string   `yaml:"command"`
	Args       []string `yaml:"args"`
	Env        []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	InstallHint string `yaml:"installHint"`
	ClusterInfo bool   `yaml:"provideClusterInfo"`
	Mode        string `yaml:"interactiveMode"`
}

// kubeconfigSettings reads a kubeconfig on the machine.
func kubeconfigSettings(v host.View, from From) (settings, error) {
	name := from.Kubeconfig
	if name == "" {
		f := fault{why: Broken, cause: errors.New("none is named")}
		return settings{}, f.to("use", "a kubeconfig")
	}

	text, err := readSmall(v, name)
	if err != nil {
		return settings{}, kubeconfigFault(err).to("use", "kubeconfig "+name)
	}

	s, err := parse(text, path.Dir(name))
	if err == nil && from.Judged {
		err = v.Trusted(s.files()...)
	}
	if err == nil && s.roots == nil && s.caFile != "" {
		s.roots, err = readRoots(v, s.caFile)
	}
	if err != nil {
		f := fault{why: Broken, cause: err}
		if errors.As(err, new(malformed)) {
			f.try = []string{"kubectl config view --kubeconfig=" + host.ShellWord(name) + ", which says where"}
		}
		return settings{}, f.to("use", "kubeconfig "+name)
	}

	s.from = "kubeconfig " + name
	s.login.view = v
	s.login.kubeconfig = name
	none := "no credentials: kubeconfig " + name + " has none for its current-context"
	s.login.about = cmp.Or(s.login.about, none)
	return s, nil
}

// kubeconfigFault returns the fault for a kubeconfig that cannot be read.
func kubeconfigFault(err error) *fault {
	f := &fault{why: Broken, cause: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.why = Missing
		f.cause = errors.New("not found (yet): kubelet or the tool that joins the machine writes it")
	case errors.Is(err, fs.ErrPermission):
		f.try = []string{"run gpuadm as root"}
	}

	return f
}

// readRoots reads the file with the certificate authorities.
func readRoots(v host.View, name string) ([]byte, error) {
	roots, err := readSmall(v, name)
	if err == nil && len(roots) == 0 {
		err = fmt.Errorf("%s is empty", name)
	}
	return roots, err
}

// CheckKubeconfig says why a kubeconfig that an operator names cannot be used; nil if it names a
// server and files that gpuadm may trust. It asks no server.
func CheckKubeconfig(v host.View, name string) error {
	_, err := kubeconfigSettings(v, From{Kubeconfig: name, Judged: true})
	return err
}

// files returns the files that a kubeconfig names, an exec plugin's program included.
func (s settings) files() (names []string) {
	all := []string{s.caFile, s.login.certFile, s.login.keyFile, s.login.tokenFile}
	if s.login.exec != nil {
		all = append(all, s.login.exec.argv[0])
	}

	for _, name := range all {
		if path.IsAbs(name) {
			names = append(names, name)
		}
	}

	return names
}

// parse reads a kubeconfig's text; names of files are relative to the kubeconfig's folder. It is
// pure. Its errors quote names, and no other values.
func parse(text []byte, folder string) (settings, error) {
	if len(text) > maxSmall {
		return settings{}, fmt.Errorf("it is larger than %d MiB", maxSmall>>20)
	}

	var k kubeconfig
	switch err := yaml.Unmarshal(text, &k); {
	case errors.As(err, new(*yaml.TypeError)):
		return settings{}, malformed("it does not have the form of a kubeconfig")
	case err != nil:
		return settings{}, malformed("it is not YAML")
	}

	cluster, user, err := k.current()
	if err != nil {
		return settings{}, err
	}
	resolve := func(name string) string {
		if name == "" || path.IsAbs(name) {
			return name
		}
		return path.Join(folder, name)
	}

	s, err := cluster.settings()
	if err != nil {
		return s, err
	}
	s.caFile = resolve(cluster.CAFile)
	s.login, err = user.login(resolve)
	return s, err
}

// CredentialsIn returns those of a kubeconfig's current context, whatever its cluster; none if it
// cannot be read.
func CredentialsIn(text []byte) Credentials {
	var k kubeconfig
	if yaml.Unmarshal(text, &k) != nil {
		return Credentials{}
	}
	_, user, _ := k.current() // a kubeconfig without the cluster still has the user
	return user
}

// malformed is what a text is not. It replaces the sentence of the YAML library, which may repeat a
// secret.
type malformed string

func (m malformed) Error() string { return string(m) }

// current finds the cluster and the user of the current context. It returns the user also if only
// the cluster is missing.
func (k kubeconfig) current() (cluster cluster, user Credentials, err error) {
	if k.Current == "" {
		return cluster, user, errors.New("it has no current-context")
	}

	context := slices.IndexFunc(k.Contexts, func(c contextEntry) bool {
		return c.Name == k.Current
	})
	if context < 0 {
		const unknown = "its current-context %q is not among its contexts: %s"
		return cluster, user, fmt.Errorf(unknown, clean(k.Current, 60), k.contextNames())
	}
	names := k.Contexts[context].Context
	lacks := func(kind, name string) error {
		const lacking = "its context %q names %s %q, which it does not have"
		return fmt.Errorf(lacking, clean(k.Current, 60), kind, clean(name, 60))
	}

	userAt := slices.IndexFunc(k.Users, func(u userEntry) bool { return u.Name == names.User })
	if userAt >= 0 {
		user = k.Users[userAt].User
	}
	clusterAt := slices.IndexFunc(k.Clusters, func(c clusterEntry) bool {
		return c.Name == names.Cluster
	})
	if clusterAt < 0 {
		return cluster, user, lacks("cluster", names.Cluster)
	}
	cluster = k.Clusters[clusterAt].Cluster
	if userAt < 0 && names.User != "" {
		return cluster, user, lacks("user", names.User)
	}
	return cluster, user, nil
}

// contextNames says which contexts there are.
func (k kubeconfig) contextNames() string {
	if len(k.Contexts) == 0 {
		return "it has none"
	}

	var names []string
	for _, c := range k.Contexts {
		names = append(names, clean(c.Name, 60))
	}
	return "there are " + clean(strings.Join(names, ", "), 200)
}

// decodeBase64 decodes a key's value; nil for "".
func decodeBase64(key, text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	withoutSpace := strings.Join(strings.Fields(text), "")
	data, err := base64.StdEncoding.DecodeString(withoutSpace)
	if err != nil {
		return nil, errors.New("its " + key + " is not base64")
	}
	return data, nil
}

// settings returns the settings of a cluster.
func (c cluster) settings() (s settings, err error) {
	switch {
	case c.SkipVerify:
		return s, errors.New("it has insecure-skip-tls-verify, so any host could answer in the API server's place: give it certificate-authority instead")
	case c.TLSName != "":
		return s, errors.New("it has tls-server-name, which is not supported")
	}

	s.server = c.Server
	s.via.HTTP = c.Proxy
	s.via.HTTPS = c.Proxy
	s.roots, err = decodeBase64("certificate-authority-data", c.CA)
	return s, err
}

// login returns the credentials of a user. resolve makes names of files absolute.
func (u Credentials) login(resolve func(string) string) (*login, error) {
	switch {
	case u.Username != "" || u.Password != "":
		return nil, errors.New("it has a user name and a password, which Kubernetes has not accepted since 1.19")
	case u.AuthProvider != nil:
		return nil, errors.New("it has an auth-provider, which Kubernetes has not known since 1.26: use exec instead")
	case u.As != "":
		return nil, errors.New("it impersonates another user (as), which is not supported")
	}

	l := &login{}
	if err := u.setCertificate(l, resolve); err != nil {
		return nil, err
	}

	l.tokenFile = resolve(u.TokenFile)
	if l.tokenFile == "" { // a file wins, as in client-go, since it is rotated
		l.token = u.Token
	}

	if u.Exec != nil {
		exec, err := u.Exec.plugin(resolve)
		if err != nil {
			return nil, err
		}
		l.exec = exec
	}

	switch {
	case l.certPEM != nil:
		l.about = "the client certificate in the kubeconfig"
	case l.certFile != "":
		l.about = "the client certificate " + l.certFile
	case l.tokenFile != "":
		l.about = "the token in " + l.tokenFile
	case l.token != "":
		l.about = "the token in the kubeconfig"
	case l.exec != nil:
		l.about = "what " + l.exec.argv[0] + " gives"
	}

	return l, nil
}

// setCertificate sets a login's client certificate and key. What the kubeconfig contains wins over
// the files that it names, as in client-go.
func (u Credentials) setCertificate(l *login, resolve func(string) string) (err error) {
	l.certPEM, err = decodeBase64("client-certificate-data", u.Cert)
	if err != nil {
		return err
	}
	l.keyPEM, err = decodeBase64("client-key-data", u.Key)
	if err != nil {
		return err
	}

	if l.certPEM == nil {
		l.certFile = resolve(u.CertFile)
	}
	if l.keyPEM == nil {
		l.keyFile = resolve(u.KeyFile)
	}

	hasKey := l.keyPEM != nil || l.keyFile != ""
	if l.hasCertificate() != hasKey {
		return errors.New("it has only one of client-certificate and client-key")
	}
	return nil
}
