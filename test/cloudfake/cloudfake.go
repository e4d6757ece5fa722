// SPDX-License-Identifier: Apache-2.0

// Package cloudfake simulates EC2: its metadata service, and those calls of EKS, EC2 and STS that
// gpuadm makes. It answers as their documents say, and fails as they do.
//
// In a unit test its handlers are put on a simulated node's network; in the lab a small command
// serves them at the real addresses, so that the unmodified binary meets them.
package cloudfake

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Machine is the one that the metadata service describes, and answers.
type Machine struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	Region    string            `json:"region"`
	Zone      string            `json:"zone"`
	Image     string            `json:"image"`
	Account   string            `json:"account"`
	Name      string            `json:"name"`      // EC2: the private DNS name
	LocalName string            `json:"localName"` // EC2: what DHCP says, where it is another one
	PrivateIP string            `json:"privateIP"`
	IPv6      string            `json:"ipv6"`
	MAC       string            `json:"mac"`
	Tags      map[string]string `json:"tags"` // EC2: nil where the instance may not see them
	UserData  string            `json:"userData"`
	Role      string            `json:"role"` // EC2: "" for none
}

// Cluster is the one that EKS knows.
type Cluster struct {
	Name        string `json:"name"`
	Server      string `json:"server"`
	CA          []byte `json:"ca"` // PEM
	Version     string `json:"version"`
	ServiceCIDR string `json:"serviceCIDR"` // IPv6 makes it an IPv6 cluster
}

// Fake is one machine's cloud. Its zero value with a Machine serves.
type Fake struct {
	Machine Machine
	Cluster Cluster
	Now     func() time.Time  // nil: time.Now
	Tell    func(line string) // nil, or called for each request before it is answered, one at a time

	mu       sync.Mutex
	requests []string
	faults   []Fault
	tokens   map[string]time.Time // EC2's session tokens, and when they end
}

// Fault is how requests fail.
type Fault struct {
	// On is the beginning of "METHOD /path"; "" = all. For EC2's API the path is "/" and the
	// Action, for all APIs without the host.
	On    string
	Times int // how often; 0 = always
	// What happens: "drop" (the connection is open, and no answer comes), "status" (Status and
	// Body), "slow" (the answer begins, and stops), "truncated" (half of it), "huge" (it does not
	// end), "body" (Body in its place), "forget" (EC2's session tokens end), "bare" (headers that
	// prove the service are left out).
	What   string
	Status int
	Body   string
	Header map[string]string
}

// Break lets requests fail from now on.
func (f *Fake) Break(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, faults...)
}

// Requests are those that came so far, in words that never change: "GET /latest/meta-data/mac with
// token: 200".
func (f *Fake) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.requests...)
}

func (f *Fake) now() time.Time {
	if f.Now == nil {
		return time.Now()
	}
	return f.Now()
}

// fault takes the fault that a request meets.
func (f *Fake) fault(request string) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for i := range f.faults {
		x := &f.faults[i]
		if x.Times < 0 || !strings.HasPrefix(request, x.On) {
			continue
		}
		if x.Times > 0 {
			x.Times--
			if x.Times == 0 {
				x.Times = -1 // used up
			}
		}

		return *x, true
	}

	return Fault{}, false
}

// answer is the answer to one request.
type answer struct {
	status int
	header map[string]string
	body   string
}

func text(body string) answer {
	return answer{200, map[string]string{"Content-Type": "text/plain"}, body}
}

// serve has say answer requests, unless they meet a fault, and writes them down: as name has it,
// with note's additions.
func (f *Fake) serve(name, note func(*http.Request) string, say func(*http.Request) answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line := name(r)
		x, broken := f.fault(line)
		var a answer
		if !broken || x.What != "status" && x.What != "drop" {
			a = say(r)
		}
		if broken && (x.What == "drop" || x.What == "slow" || x.What == "huge") {
			f.write(line + note(r) + ": " + x.What) // before the client gives up
			f.never(w, r, x, a)
			return
		}

		if broken {
			f.broken(w, x, &a)
		}

		f.write(line + note(r) + ": " + strconv.Itoa(a.status))
		for k, v := range a.header {
			w.Header().Set(k, v)
		}
		if f.Now != nil {
			w.Header().Set("Date", f.Now().UTC().Format(http.TimeFormat))
		}
		w.WriteHeader(a.status)
		fmt.Fprint(w, a.body)
	})
}

// never gives an answer that does not end: nothing at all, one that stops, or one that continues
// for 16 MiB.
func (f *Fake) never(w http.ResponseWriter, r *http.Request, x Fault, a answer) {
	if x.What != "drop" {
		for k, v := range a.header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(a.status)
	}

	if x.What == "huge" {
		part := []byte(strings.Repeat("huge", 256))
		for range 16 << 10 {
			if _, err := w.Write(part); err != nil {
				return
			}
		}

		return
	}

	flush, ok := w.(http.Flusher)
	if ok && x.What == "slow" {
		flush.Flush()
	}
	<-r.Context().Done()
}

// broken changes an answer that is still sent.
func (f *Fake) broken(w http.ResponseWriter, x Fault, a *answer) {
	switch x.What {
	case "status":
		*a = answer{x.Status, x.Header, x.Body}
	case "truncated":
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
		a.body = a.body[:len(a.body)/2]
	case "body":
		a.body = x.Body
	case "forget":
		f.mu.Lock()
		f.tokens = nil
		f.mu.Unlock()
	case "bare":
		a.header = nil
	}
}

func (f *Fake) write(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, line)

	if f.Tell != nil {
		f.Tell(line)
	}
}

// Unasked is another cloud's metadata service, which gpuadm has no reason to ask: it writes
// requests down, and knows nothing.
func (f *Fake) Unasked() http.Handler {
	none := func(*http.Request) string { return "" }
	notFound := func(*http.Request) answer { return answer{status: http.StatusNotFound} }
	return f.serve(requestLine, none, notFound)
}

// requestLine is how a request to a metadata service is written down.
func requestLine(r *http.Request) string {
	line := r.Method + " " + r.URL.Path
	if r.URL.RawQuery != "" {
		line += "?" + r.URL.RawQuery
	}
	return line
}

// Refused are the faults with which AWS's APIs say no, by a name: throttled, denied, missing,
// expired, skewed, failing.
func Refused(name string) []Fault {
	eks, ec2 := refusal(name)
	if eks.status == 0 {
		return nil
	}
	return []Fault{
		{On: "eks ", What: "status", Status: eks.status, Header: eks.header, Body: eks.body},
		{On: "ec2 ", What: "status", Status: ec2.status, Header: ec2.header, Body: ec2.body},
	}
}

// refusal is how EKS's and EC2's APIs say no. The command line's words:
// https://github.com/awslabs/amazon-eks-ami/pull/218. EC2's:
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func refusal(name string) (eks, ec2 answer) {
	switch name {
	case "throttled":
		return jsonError(429, "TooManyRequestsException", "Too Many Requests"),
			xmlError(503, "RequestLimitExceeded", "Request limit exceeded.")

	case "denied":
		return jsonError(403, "AccessDeniedException", "User: arn:aws:sts::123456789012:assumed-role/node/i-0abcdef1234567890 is not authorized to perform: eks:DescribeCluster on resource: arn:aws:eks:us-east-1:123456789012:cluster/gpus"),
			xmlError(403, "UnauthorizedOperation", "You are not authorized to perform this operation.")

	case "missing":
		// https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeCluster.html
		return jsonError(404, "ResourceNotFoundException", "No cluster found for name: gpus."),
			xmlError(400, "InvalidInstanceID.NotFound", "The instance ID 'i-0abcdef1234567890' does not exist")

	case "expired":
		return jsonError(403, "ExpiredTokenException", "The security token included in the request is expired"),
			xmlError(400, "RequestExpired", "Request has expired.")

	case "skewed":
		// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html
		return jsonError(403, "InvalidSignatureException", "Signature expired: 20260101T000000Z is now earlier than 20260101T000500Z"),
			xmlError(401, "AuthFailure", "AWS was not able to validate the provided access credentials")

	case "failing":
		return jsonError(503, "ServiceUnavailableException", "The service is unavailable. Back off and retry the operation."),
			xmlError(500, "InternalError", "An internal error has occurred")
	}

	return answer{}, answer{}
}
