// SPDX-License-Identifier: Apache-2.0

// Command serve is a cloud for the lab: a metadata service at its real address, AWS's API with
// certificates of a CA that the lab's machines trust, and the webhook that checks tokens. What is
// asked of it goes to standard output, a line each.
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

func main() {
	file := flag.String("setup", "", "JSON file of a cloudfake.Setup")
	metadata := flag.String("metadata", "", "address of the metadata service: 169.254.169.254:80")
	after := flag.Duration("after", 0, "how long the metadata service refuses connections at first")
	api := flag.String("api", "", "address of AWS's API, with TLS: 0.0.0.0:443")
	cert, key := flag.String("ca", "", "certificate of the CA, PEM"), flag.String("ca-key", "", "its key, PEM")
	review := flag.String("review", "", "address of the token webhook: 127.0.0.1:8443, without TLS")
	flag.Parse()
	if err := run(*file, *metadata, *after, *api, *cert, *key, *review); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file, metadata string, after time.Duration, api, cert, key, review string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s cloudfake.Setup
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("cannot read %s: %w", file, err)
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
	serve(metadata, map[string]http.Handler{"aws": f.EC2(), "gce": f.Unasked(), "azure": f.Unasked()}[s.Cloud], nil, after)
	serve(review, f.Review(), nil, 0)
	if api != "" {
		config, err := cloudfake.TLS(cert, key, s.Machine.Region)
		if err != nil {
			return err
		}
		serve(api, f.API(), config, 0)
	}
	return <-ended
}
