// SPDX-License-Identifier: Apache-2.0

// Command serve is a cloud for the lab: a metadata service at its real address, AWS's API with
// certificates of a CA that the lab's machines trust, and the webhook that checks tokens. Each
// request goes to standard output, a line each.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gpuadm/gpuadm/test/cloudfake"
)

// options are the flags.
type options struct {
	setup, metadata, api string
	after                time.Duration
	cert, key            string
	review               string
}

func main() {
	var o options
	flag.StringVar(&o.setup, "setup", "", "JSON file of a cloudfake.Setup")
	flag.StringVar(&o.metadata, "metadata", "", "address of the metadata service: 169.254.169.254:80")
	flag.DurationVar(&o.after, "after", 0, "how long the metadata service refuses connections at first")
	flag.StringVar(&o.api, "api", "", "address of AWS's API, with TLS: 0.0.0.0:443")
	flag.StringVar(&o.cert, "ca", "", "certificate of the CA, PEM")
	flag.StringVar(&o.key, "ca-key", "", "its key, PEM")
	flag.StringVar(&o.review, "review", "", "address of the token webhook: 127.0.0.1:8443, without TLS")
	flag.Parse()

	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(o options) error {
	data, err := os.ReadFile(o.setup)
	if err != nil {
		return err
	}
	var s cloudfake.Setup
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("cannot read %s: %w", o.setup, err)
	}

	f := s.Fake()
	f.Tell = func(line string) { fmt.Println(line) }
	ended := make(chan error)
	serve := func(address string, h http.Handler, config *tls.Config, after time.Duration) {
		if address == "" {
			return
		}
		go func() {
			time.Sleep(after)
			l, err := net.Listen("tcp", address)
			if err == nil && config != nil {
				l = tls.NewListener(l, config)
			}
			if err == nil {
				err = http.Serve(l, h)
			}
			ended <- err
		}()
	}

	metadata := f.Unasked()
	if s.Cloud == "aws" {
		metadata = f.EC2()
	}
	serve(o.metadata, metadata, nil, o.after)
	serve(o.review, f.Review(), nil, 0)
	if o.api != "" {
		config, err := cloudfake.TLS(o.cert, o.key, s.Machine.Region)
		if err != nil {
			return err
		}
		serve(o.api, f.API(), config, 0)
	}

	return <-ended
}
