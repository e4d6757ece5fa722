// SPDX-License-Identifier: Apache-2.0

package cloudfake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Keys of the role that EC2's metadata service hands out. They are planted: no output of gpuadm may
// hold them.
const (
	AccessKey    = "ASIAPLANTEDKEY000000"
	SecretKey    = "planted/secret+key0000000000000000000000"
	SessionToken = "planted-session-token//////////"
)

const tokenHeader = "X-Aws-Ec2-Metadata-Token"

// EC2 is EC2's metadata service, version 2 alone (HttpTokens=required).
// Source:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
func (f *Fake) EC2() http.Handler {
	return f.serve(asked, func(r *http.Request) string {
		switch {
		case r.Method == http.MethodPut:
			return " for " + r.Header.Get(tokenHeader+"-Ttl-Seconds") + " s"
		case r.Header.Get(tokenHeader) != "":
			return " with token"
		}
		return ""
	}, f.ec2)
}

func (f *Fake) ec2(r *http.Request) answer {
	switch {
	case r.Header.Get("X-Forwarded-For") != "": // a proxy gets no token, so that no server can be tricked into fetching one
		return ec2Error(403, "Forbidden")
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		ttl, err := strconv.Atoi(r.Header.Get(tokenHeader + "-Ttl-Seconds"))
		if err != nil || ttl < 1 || ttl > 21600 { // six hours
			return ec2Error(400, "Bad Request")
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		token := fmt.Sprintf("planted-imds-token-%d==", len(f.tokens))
		if f.tokens == nil {
			f.tokens = map[string]time.Time{}
		}
		f.tokens[token] = f.now().Add(time.Duration(ttl) * time.Second)
		a := text(token)
		a.header[tokenHeader+"-Ttl-Seconds"] = strconv.Itoa(ttl)
		return a
	case r.Method != http.MethodGet:
		return ec2Error(405, "Not Allowed")
	}
	f.mu.Lock()
	ends, known := f.tokens[r.Header.Get(tokenHeader)]
	f.mu.Unlock()
	if !known || !f.now().Before(ends) {
		return ec2Error(401, "Unauthorized")
	}
	if answer, ok := f.ec2Says(r.URL.Path); ok {
		return text(answer)
	}
	return ec2Error(404, "Not Found")
}

// ec2Says is what is said at a path.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
func (f *Fake) ec2Says(path string) (string, bool) {
	m := f.Machine
	switch path {
	case "/latest/user-data":
		return m.UserData, m.UserData != ""
	case "/latest/dynamic/instance-identity/document":
		// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html
		doc, _ := json.MarshalIndent(map[string]any{
			"accountId": m.Account, "architecture": "x86_64", "availabilityZone": m.Zone, "billingProducts": nil, "devpayProductCodes": nil,
			"marketplaceProductCodes": nil, "imageId": m.Image, "instanceId": m.ID, "instanceType": m.Type, "kernelId": nil,
			"pendingTime": "2026-01-01T00:00:00Z", "privateIp": m.PrivateIP, "ramdiskId": nil, "region": m.Region, "version": "2017-09-30",
		}, "", "  ")
		return string(doc), true
	}
	path, ok := strings.CutPrefix(path, "/latest/meta-data/")
	if !ok {
		return "", false
	}
	if tag, ok := strings.CutPrefix(path, "tags/instance/"); ok {
		return f.ec2Tag(tag)
	}
	name := m.LocalName
	if name == "" {
		name = m.Name
	}
	answer := map[string]string{
		"instance-id": m.ID, "instance-type": m.Type, "local-ipv4": m.PrivateIP, "mac": m.MAC, "local-hostname": name,
		"placement/availability-zone": m.Zone, "placement/region": m.Region, "services/domain": "amazonaws.com", "services/partition": "aws",
		"network/interfaces/macs/" + m.MAC + "/ipv6s": m.IPv6,
	}
	if m.Role != "" {
		answer["iam/security-credentials/"] = m.Role
		// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
		keys, _ := json.MarshalIndent(map[string]any{
			"Code": "Success", "LastUpdated": f.now().UTC().Format(time.RFC3339), "Type": "AWS-HMAC", "AccessKeyId": AccessKey,
			"SecretAccessKey": SecretKey, "Token": SessionToken, "Expiration": f.now().Add(6 * time.Hour).UTC().Format(time.RFC3339),
		}, "", "  ")
		answer["iam/security-credentials/"+m.Role] = string(keys)
	}
	return answer[path], answer[path] != ""
}

// ec2Tag is what is said of a tag, or which there are.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html
func (f *Fake) ec2Tag(name string) (string, bool) {
	if f.Machine.Tags == nil {
		return "", false
	}
	if name != "" {
		value, ok := f.Machine.Tags[name]
		return value, ok
	}
	var names []string
	for k := range f.Machine.Tags {
		names = append(names, k)
	}
	slices.Sort(names)
	return strings.Join(names, "\n"), true
}

func ec2Error(status int, words string) answer {
	return answer{status, map[string]string{"Content-Type": "text/html"}, fmt.Sprintf(
		"<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n<html><head><title>%d - %s</title></head><body><h1>%d - %s</h1></body></html>\n", status, words, status, words)}
}
