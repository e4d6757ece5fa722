// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloudfake

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// Azure is Azure's metadata service.
// Source: https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
func (f *Fake) Azure() http.Handler {
	return f.serve(asked, func(r *http.Request) string {
		if r.Header.Get("Metadata") != "true" {
			return " without header"
		}
		return ""
	}, f.azure)
}

func (f *Fake) azure(r *http.Request) answer {
	form := map[string]string{"Content-Type": "application/json; charset=utf-8"}
	switch {
	case r.Header.Get("X-Forwarded-For") != "":
		return answer{400, form, `{ "error": "Bad request. X-Forwarded-For is not allowed" }`}
	case r.Header.Get("Metadata") != "true":
		return answer{400, form, `{ "error": "Bad request. Required metadata header not specified" }`}
	case r.Method != http.MethodGet:
		return answer{405, form, `{ "error": "Method Not Allowed" }`}
	}
	version := r.URL.Query().Get("api-version")
	switch r.URL.Path {
	case "/metadata/instance":
		if !slices.Contains([]string{"2021-01-01", "2021-02-01", "2021-12-13"}, version) {
			return answer{400, form, `{ "error": "Bad request. api-version was not specified in the request. For more information refer to aka.ms/azureimds", "newest-versions": [ "2021-12-13", "2021-11-15", "2021-11-01" ] }`}
		}
		return answer{200, form, f.azureInstance()}
	}
	return answer{404, form, `{ "error": "Not found" }`}
}

func (f *Fake) azureInstance() string {
	m := f.Machine
	priority := ""
	if m.Spot {
		priority = "Spot"
	}
	names := []string{}
	for k := range m.Tags {
		names = append(names, k)
	}
	slices.Sort(names)
	tags := []map[string]string{}
	for _, k := range names {
		tags = append(tags, map[string]string{"name": k, "value": m.Tags[k]})
	}
	v6 := []map[string]string{}
	if m.IPv6 != "" {
		v6 = append(v6, map[string]string{"privateIpAddress": m.IPv6})
	}
	body, _ := json.Marshal(map[string]any{
		"compute": map[string]any{
			"azEnvironment": "AzurePublicCloud", "location": m.Region, "name": m.Name, "vmId": m.ID, "vmSize": m.Type, "zone": m.Zone,
			"subscriptionId": m.Account, "priority": priority, "evictionPolicy": "", "vmScaleSetName": m.Attributes["vm-scale-set"],
			"resourceGroupName": m.Attributes["resource-group"], "tagsList": tags, "userData": base64.StdEncoding.EncodeToString([]byte(m.UserData)),
			"storageProfile": map[string]any{"imageReference": map[string]string{"id": m.Image, "publisher": "", "offer": "", "sku": "", "version": ""}},
		},
		"network": map[string]any{"interface": []any{map[string]any{
			"ipv4":       map[string]any{"ipAddress": []any{map[string]string{"privateIpAddress": m.PrivateIP, "publicIpAddress": ""}}, "subnet": []any{map[string]string{"address": "10.224.0.0", "prefix": "16"}}},
			"ipv6":       map[string]any{"ipAddress": v6},
			"macAddress": strings.ToUpper(strings.ReplaceAll(m.MAC, ":", "")),
		}}},
	})
	return string(body)
}
