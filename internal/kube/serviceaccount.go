// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"net"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// podFolder has the ServiceAccount's token and the cluster's certificate authority, in each pod.
const podFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// podSettings reads the server and the credentials that Kubernetes gives to each pod:
// https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
func podSettings(v host.View) (settings, error) {
	server, err := podServer(v)
	var roots []byte
	if err == nil {
		roots, err = readSmall(v, podFolder+"/ca.crt")
	}
	if err != nil {
		f := fault{
			why:   Broken,
			cause: err,
			try:   []string{"give the pod a serviceAccountName and leave automountServiceAccountToken on"},
		}
		return settings{}, f.to("use", "the pod's ServiceAccount")
	}

	return settings{
		from:   "the pod's ServiceAccount",
		server: server,
		roots:  roots,
		login: &login{
			view:      v,
			tokenFile: podFolder + "/token",
			about:     "the pod's ServiceAccount token",
		},
	}, nil
}

// podServer returns the API server's URL, from the environment that Kubernetes gives to each pod.
func podServer(v host.View) (string, error) {
	text, err := v.ReadFile("/proc/self/environ") // this process's own; a simulated machine has another
	if err != nil {
		return "", err
	}

	environ := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\x00") {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		environ[key] = value
	}

	name := environ["KUBERNETES_SERVICE_HOST"]
	port := environ["KUBERNETES_SERVICE_PORT"]
	if name == "" || port == "" {
		return "", errors.New("KUBERNETES_SERVICE_HOST and _PORT are not set: this is not a pod")
	}
	return "https://" + net.JoinHostPort(name, port), nil
}
