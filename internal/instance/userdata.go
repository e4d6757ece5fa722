// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/pem"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"net/netip"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxUserData limits the unpacked size in bytes of all parts of user data together: EC2 accepts 16
// KiB packed. nodeadm could not read larger user data.
const maxUserData = 1 << 20

// nodeConfigGroup is the API group of nodeadm's NodeConfig.
const nodeConfigGroup = "node.eks.aws"

// nodeConfigDocument has the facts about a cluster in nodeadm's NodeConfig.
type nodeConfigDocument struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Spec       struct {
		Cluster struct {
			Name        string
			Server      string `yaml:"apiServerEndpoint"`
			CA          string `yaml:"certificateAuthority"`
			ServiceCIDR string `yaml:"cidr"`
		}
	}
}

// nodeConfig reads the cluster from user data as nodeadm accepts it: NodeConfig documents of
// node.eks.aws, alone or as parts of a MIME message, packed by gzip and base64 or not; later
// documents win. It ignores the rest. nil if there is no document, or none with facts about the
// cluster.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/configprovider/userdata.go
func nodeConfig(data []byte) *Cluster {
	var c Cluster
	found := false
	for _, text := range documents(unpack(data)) {
		var doc nodeConfigDocument
		err := yaml.Unmarshal(text, &doc)
		ofNodeadm := doc.Kind == "NodeConfig" && strings.HasPrefix(doc.APIVersion, nodeConfigGroup+"/")
		if err == nil && ofNodeadm && c.merge(doc) {
			found = true
		}
	}

	if !found {
		return nil
	}

	c.From = "user data"
	return &c
}

// merge takes over the valid facts of a document, and says whether it has any.
func (c *Cluster) merge(doc nodeConfigDocument) (found bool) {
	stated := doc.Spec.Cluster
	if clusterName(stated.Name) {
		c.Name = stated.Name
		found = true
	}
	if server(stated.Server) {
		c.Server = stated.Server
		found = true
	}
	if ca := authority(stated.CA); ca != nil {
		c.CA = ca
		found = true
	}
	if services, err := netip.ParsePrefix(stated.ServiceCIDR); err == nil {
		c.ServiceCIDR = services.String()
		c.DNS = ClusterDNS(services)
		found = true
	}

	return found
}

// unpack decodes base64 and gzip, in either order.
func unpack(data []byte) []byte {
	for range 3 {
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			data = gunzip(data)
			continue
		}
		withoutSpace := bytes.Join(bytes.Fields(data), nil)
		plain, err := base64.StdEncoding.DecodeString(string(withoutSpace))
		if err != nil || len(plain) == 0 {
			return data
		}
		data = plain
	}
	return data
}

// gunzip unpacks data; nil if that fails or is too large.
func gunzip(data []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxUserData+1))
	if err != nil || len(plain) > maxUserData {
		return nil
	}
	return plain
}

// documents returns the parts that may be a NodeConfig.
func documents(data []byte) (list [][]byte) {
	m, err := mail.ReadMessage(bytes.NewReader(data))
	if err != nil {
		return [][]byte{data}
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(kind, "multipart/") {
		return [][]byte{data}
	}

	parts := multipart.NewReader(m.Body, params["boundary"])
	size := 0
	for range 100 {
		part, err := parts.NextPart()
		if err != nil {
			return list
		}
		kind, _, _ := mime.ParseMediaType(part.Header.Get("Content-Type"))
		if kind != "application/"+nodeConfigGroup {
			continue
		}
		body, err := io.ReadAll(io.LimitReader(part, maxUserData))
		if err != nil {
			continue
		}

		doc := unpack(body)
		size += len(doc)
		if size > maxUserData {
			return nil
		}
		list = append(list, doc)
	}

	return list
}

// authority decodes a PEM certificate from base64; nil if it is none.
func authority(text string) []byte {
	data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || !certificate(data) {
		return nil
	}
	return data
}

// certificate says whether data begins with a certificate in PEM form.
func certificate(data []byte) bool {
	block, _ := pem.Decode(data)
	return block != nil && block.Type == "CERTIFICATE" && len(data) <= 64<<10
}

// server says whether s can be an API server's address.
func server(s string) bool {
	u, err := url.Parse(s)
	if err != nil || !plain(s) {
		return false
	}
	onlyHost := u.User == nil && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
	return u.Scheme == "https" && u.Host != "" && onlyHost
}
