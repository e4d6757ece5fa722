// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

// Object is a Kubernetes object, or a part of one.
type Object = map[string]any

// Client asks the API server as one user.
type Client struct {
	http  *http.Client
	token string
	mutex sync.Mutex
	kinds map[string]kind // by apiVersion and kind

	heard    sync.Mutex
	warnings []string
}

// kind is how objects of a kind are addressed.
type kind struct {
	plural     string
	namespaced bool
}

// Refused is an answer of the API server that is not a yes.
type Refused struct {
	Status  int
	Message string
}

func (r *Refused) Error() string { return fmt.Sprintf("%d: %s", r.Status, r.Message) }

// StatusOf is the HTTP status of an error of a Client: 200 for none, 0 where there was no answer.
func StatusOf(err error) int {
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		return refused.Status
	}
	if err != nil {
		return 0
	}
	return http.StatusOK
}

// client asks as the owner of a certificate or of a token, or as an anonymous client.
func (c *Cluster) client(cert *tls.Certificate, token string) *Client {
	roots := x509.NewCertPool()
	roots.AddCert(c.keys.ca.cert)
	transport := &http.Transport{
		DialContext: c.network.dial, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 100,
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}
	if cert != nil {
		transport.TLSClientConfig.Certificates = []tls.Certificate{*cert}
	}
	return &Client{http: &http.Client{Transport: transport, Timeout: patience}, token: token}
}

// Node asks as a node's kubelet does once it has joined.
func (c *Cluster) Node(name string) (*Client, error) {
	cert, err := c.keys.certify("system:node:"+name, "system:nodes")
	if err != nil {
		return nil, err
	}
	return c.client(&cert, ""), nil
}

// Bearer asks as the owner of a token; "" asks as an anonymous client.
func (c *Cluster) Bearer(token string) *Client { return c.client(nil, token) }

// Close ends the client's connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Do sends a request and returns the answer's object; kind is the body's media type, "" for JSON.
// An answer that is not an object, such as that of /readyz, is an Object with its text as "text".
func (c *Client) Do(ctx context.Context, method, path, kind string, body []byte) (Object, error) {
	status, text, err := c.Send(ctx, method, path, kind, body)
	if err != nil {
		return nil, err
	}
	var o Object
	if json.Unmarshal(text, &o) != nil {
		o = Object{"text": string(text)}
	}
	if status >= 300 {
		message, _ := o["message"].(string)
		if message == "" {
			message = string(text)
		}
		return nil, fmt.Errorf("cannot %s %s: %w", strings.ToLower(method), path, &Refused{status, message})
	}

	return o, nil
}

// Send sends a request, as Do does, and returns the answer's status and body, also of a refusal.
func (c *Client) Send(ctx context.Context, method, path, kind string, body []byte) (status int, text []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+address+":"+port+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("cannot ask for %s: %w", path, err)
	}
	if kind == "" {
		kind = "application/json"
	}
	request.Header.Set("Content-Type", kind)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot %s %s: %w", strings.ToLower(method), path, err)
	}
	defer response.Body.Close()
	c.heard.Lock()
	c.warnings = append(c.warnings, response.Header.Values("Warning")...)
	c.heard.Unlock()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot read the answer for %s: %w", path, err)
	}
	return response.StatusCode, text, nil
}

// Warnings are what the API server has warned this client of, as kubectl prints it.
// Source: https://kubernetes.io/blog/2020/09/03/warnings/.
func (c *Client) Warnings() []string {
	c.heard.Lock()
	defer c.heard.Unlock()
	return slices.Clone(c.warnings)
}

// Get gets the object at a path, such as /api/v1/nodes/NAME.
func (c *Client) Get(ctx context.Context, path string) (Object, error) {
	return c.Do(ctx, http.MethodGet, path, "", nil)
}

// Create posts an object to a path, such as /api/v1/nodes.
func (c *Client) Create(ctx context.Context, path string, o Object) (Object, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("cannot write an object: %w", err)
	}
	return c.Do(ctx, http.MethodPost, path, "", body)
}

// Merge changes the object at a path by a JSON merge patch.
func (c *Client) Merge(ctx context.Context, path string, change Object) (Object, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("cannot write a patch: %w", err)
	}
	return c.Do(ctx, http.MethodPatch, path, "application/merge-patch+json", body)
}

// Delete deletes the object at a path. One that is not there is no error.
func (c *Client) Delete(ctx context.Context, path string) error {
	_, err := c.Do(ctx, http.MethodDelete, path, "", nil)
	if StatusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}

// Apply makes objects be there as stated, by server-side apply.
func (c *Client) Apply(ctx context.Context, objects ...Object) error {
	return c.apply(ctx, "force=true", objects)
}

// DryRun has the API server judge objects as for Apply, an unknown field included, and makes
// nothing.
func (c *Client) DryRun(ctx context.Context, objects ...Object) error {
	return c.apply(ctx, "force=true&dryRun=All&fieldValidation=Strict", objects)
}

func (c *Client) apply(ctx context.Context, options string, objects []Object) error {
	for _, o := range objects {
		path, err := c.Path(ctx, o)
		if err != nil {
			return err
		}
		body, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("cannot write an object: %w", err)
		}
		if _, err := c.Do(ctx, http.MethodPatch, path+"?fieldManager=lab&"+options, "application/apply-patch+yaml", body); err != nil {
			return err
		}
	}
	return nil
}

// Documents reads the objects of a YAML file.
func Documents(text []byte) (list []Object, err error) {
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o Object
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot read a manifest: %w", err)
		}

		if o != nil {
			list = append(list, o)
		}
	}
}

// Path is where an object lies.
func (c *Client) Path(ctx context.Context, o Object) (string, error) {
	version, _ := o["apiVersion"].(string)
	name, _ := o["kind"].(string)
	base := "/apis/" + version
	if !strings.Contains(version, "/") {
		base = "/api/" + version
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if _, known := c.kinds[version+" "+name]; !known {
		list, err := c.Get(ctx, base)
		if err != nil {
			return "", err
		}
		if c.kinds == nil {
			c.kinds = map[string]kind{}
		}
		for _, r := range List(list, "resources") {
			is, _ := r["kind"].(string)
			plural, _ := r["name"].(string)
			namespaced, _ := r["namespaced"].(bool)
			if !strings.Contains(plural, "/") { // that would be a part of it, such as nodes/status
				c.kinds[version+" "+is] = kind{plural, namespaced}
			}
		}
	}

	k, known := c.kinds[version+" "+name]
	if !known {
		return "", fmt.Errorf("cannot find kind %s of %s", name, version)
	}
	if k.namespaced {
		namespace := Text(o, "metadata", "namespace")
		if namespace == "" {
			namespace = "default"
		}
		base += "/namespaces/" + namespace
	}

	return base + "/" + k.plural + "/" + Text(o, "metadata", "name"), nil
}

// At is what lies in an object under keys; nil if there is nothing.
func At(o any, keys ...string) any {
	for _, key := range keys {
		m, _ := o.(Object)
		o = m[key]
	}
	return o
}

// Text is At for a text.
func Text(o any, keys ...string) string {
	text, _ := At(o, keys...).(string)
	return text
}

// List is At for a list of objects.
func List(o any, keys ...string) (list []Object) {
	items, _ := At(o, keys...).([]any)
	for _, item := range items {
		if object, ok := item.(Object); ok {
			list = append(list, object)
		}
	}

	return list
}
