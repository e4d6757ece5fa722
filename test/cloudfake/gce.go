// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloudfake

import (
	"net/http"
	"slices"
	"strings"
)

// KubeEnv is in the place where GKE keeps the key that joins machines to the cluster. A request for it fails the test.
const KubeEnv = "TPM_BOOTSTRAP_KEY: planted-kube-env"

// GCE is Compute Engine's metadata service.
// Source: https://cloud.google.com/compute/docs/metadata/querying-metadata
func (f *Fake) GCE() http.Handler {
	return f.serve(asked, func(r *http.Request) string {
		if r.Header.Get("Metadata-Flavor") == "" {
			return " without flavor"
		}
		return ""
	}, func(r *http.Request) answer {
		a := f.gce(r)
		a.header = map[string]string{"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "Content-Type": "application/text"}
		return a
	})
}

func (f *Fake) gce(r *http.Request) answer {
	switch {
	case r.Header.Get("X-Forwarded-For") != "":
		return answer{status: 403, body: "<title>403 Forbidden</title>"}
	case r.Header.Get("Metadata-Flavor") != "Google":
		return answer{status: 403, body: "Missing Metadata-Flavor:Google header."}
	case r.Method != http.MethodGet:
		return answer{status: 405}
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/computeMetadata/v1/")
	if !ok {
		return answer{status: 404}
	}
	if answer, ok := f.gceSays(path); ok {
		return text(answer)
	}
	return answer{status: 404, body: "<title>404 Not Found</title>"}
}

// gceSays is what is said at a path.
// Source: https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
func (f *Fake) gceSays(path string) (string, bool) {
	m := f.Machine
	upper := func(b bool) string { return strings.ToUpper(map[bool]string{true: "true", false: "false"}[b]) }
	answer := map[string]string{
		"instance/id": m.ID, "instance/name": m.Name, "instance/zone": "projects/424242/zones/" + m.Zone, "instance/image": m.Image,
		"instance/machine-type": "projects/424242/machineTypes/" + m.Type, "instance/scheduling/preemptible": upper(m.Spot),
		"project/project-id":               m.Account,
		"instance/network-interfaces/0/ip": m.PrivateIP, "instance/network-interfaces/0/mac": m.MAC, "instance/network-interfaces/0/ipv6s": m.IPv6,
		"instance/attributes/kube-env": KubeEnv,
	}
	for k, v := range m.Attributes {
		answer["instance/attributes/"+k] = v
	}
	if path == "instance/attributes/" {
		names := []string{"kube-env"}
		for k := range m.Attributes {
			names = append(names, k)
		}
		slices.Sort(names)
		return strings.Join(names, "\n"), true
	}
	return answer[path], answer[path] != ""
}
