// SPDX-License-Identifier: Apache-2.0

package cloudfake

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
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
	note := func(r *http.Request) string {
		switch {
		case r.Method == http.MethodPut:
			return " for " + r.Header.Get(tokenHeader+"-Ttl-Seconds") + " s"
		case r.Header.Get(tokenHeader) != "":
			return " with token"
		}
		return ""
	}

	return f.serve(requestLine, note, f.ec2)
}

func (f *Fake) ec2(r *http.Request) answer {
	switch {
	case r.Header.Get("X-Forwarded-For") != "": // a proxy gets no token, so that it cannot fetch one for others
		return ec2Error(403, "Forbidden")
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		return f.ec2Token(r)
	case r.Method != http.MethodGet:
		return ec2Error(405, "Not Allowed")
	}

	f.mu.Lock()
	ends, known := f.tokens[r.Header.Get(tokenHeader)]
	f.mu.Unlock()
	if !known || !f.now().Before(ends) {
		return ec2Error(401, "Unauthorized")
	}
	if body, ok := f.ec2Data(r.URL.Path); ok {
		return text(body)
	}

	return ec2Error(404, "Not Found")
}

// ec2Token makes a session token.
func (f *Fake) ec2Token(r *http.Request) answer {
	const ttlHeader = tokenHeader + "-Ttl-Seconds"
	ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
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
	a.header[ttlHeader] = strconv.Itoa(ttl)
	return a
}

// ec2Data is the text at a path.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
func (f *Fake) ec2Data(path string) (string, bool) {
	m := f.Machine
	switch path {
	case "/latest/user-data":
		return m.UserData, m.UserData != ""
	case "/latest/dynamic/instance-identity/document":
		return f.ec2Document(), true
	}

	path, ok := strings.CutPrefix(path, "/latest/meta-data/")
	if !ok {
		return "", false
	}
	if tag, ok := strings.CutPrefix(path, "tags/instance/"); ok {
		return f.ec2Tag(tag)
	}
	values := f.ec2Values()

	return values[path], values[path] != ""
}

// ec2Document is the instance's identity document.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html
func (f *Fake) ec2Document() string {
	m := f.Machine
	doc, _ := json.MarshalIndent(map[string]any{
		"accountId":               m.Account,
		"architecture":            "x86_64",
		"availabilityZone":        m.Zone,
		"billingProducts":         nil,
		"devpayProductCodes":      nil,
		"marketplaceProductCodes": nil,
		"imageId":                 m.Image,
		"instanceId":              m.ID,
		"instanceType":            m.Type,
		"kernelId":                nil,
		"pendingTime":             "2026-01-01T00:00:00Z",
		"privateIp":               m.PrivateIP,
		"ramdiskId":               nil,
		"region":                  m.Region,
		"version":                 "2017-09-30",
	}, "", "  ")

	return string(doc)
}

// ec2Values are the texts below /latest/meta-data/ except the tags.
func (f *Fake) ec2Values() map[string]string {
	m := f.Machine
	values := map[string]string{
		"instance-id":                 m.ID,
		"instance-type":               m.Type,
		"local-ipv4":                  m.PrivateIP,
		"mac":                         m.MAC,
		"local-hostname":              cmp.Or(m.LocalName, m.Name),
		"placement/availability-zone": m.Zone,
		"placement/region":            m.Region,
		"services/domain":             "amazonaws.com",
		"services/partition":          "aws",

		"network/interfaces/macs/" + m.MAC + "/ipv6s": m.IPv6,
	}
	if m.Role == "" {
		return values
	}

	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
	keys, _ := json.MarshalIndent(map[string]any{
		"Code":            "Success",
		"LastUpdated":     f.now().UTC().Format(time.RFC3339),
		"Type":            "AWS-HMAC",
		"AccessKeyId":     AccessKey,
		"SecretAccessKey": SecretKey,
		"Token":           SessionToken,
		"Expiration":      f.now().Add(6 * time.Hour).UTC().Format(time.RFC3339),
	}, "", "  ")
	values["iam/security-credentials/"] = m.Role
	values["iam/security-credentials/"+m.Role] = string(keys)

	return values
}

// ec2Tag is the value of a tag, or without a name the list of tags.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html
func (f *Fake) ec2Tag(name string) (string, bool) {
	if f.Machine.Tags == nil {
		return "", false
	}
	if name != "" {
		value, ok := f.Machine.Tags[name]
		return value, ok
	}

	names := slices.Sorted(maps.Keys(f.Machine.Tags))
	return strings.Join(names, "\n"), true
}

func ec2Error(status int, words string) answer {
	const format = "<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n" +
		"<html><head><title>%[1]d - %[2]s</title></head><body><h1>%[1]d - %[2]s</h1></body></html>\n"
	body := fmt.Sprintf(format, status, words)

	return answer{status, map[string]string{"Content-Type": "text/html"}, body}
}
