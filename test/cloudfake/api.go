// SPDX-License-Identifier: Apache-2.0

package cloudfake

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// API is AWS's: EKS, EC2 and STS, told apart by the host that a request names. Signatures are
// checked.
func (f *Fake) API() http.Handler {
	none := func(*http.Request) string { return "" }
	return f.serve(f.callLine, none, f.api)
}

// service is which of AWS's services a request is for: "eks" of eks.us-east-1.amazonaws.com.
func service(r *http.Request) string {
	name, _, _ := strings.Cut(host(r), ".")
	return name
}

// host is the one that a request names; a simulated network passes the client's request on, which
// has it in its URL.
func host(r *http.Request) string {
	if r.Host == "" {
		return r.URL.Host
	}
	return r.Host
}

// callLine is how a request is written down: "eks GET /clusters/gpus", "ec2 DescribeInstances
// i-0abc".
func (f *Fake) callLine(r *http.Request) string {
	switch service(r) {
	case "ec2":
		form := f.form(r)
		about := form.Get("InstanceId.1") + form.Get("InstanceType.1")
		return strings.TrimSpace("ec2 " + form.Get("Action") + " " + about)
	case "sts":
		return "sts " + r.URL.Query().Get("Action")
	}

	return service(r) + " " + r.Method + " " + r.URL.Path
}

// form reads a request's body and leaves it there.
func (f *Fake) form(r *http.Request) url.Values {
	if r.Body == nil {
		return nil
	}

	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, _ := url.ParseQuery(string(body))

	return form
}

func (f *Fake) api(r *http.Request) answer {
	if wrong := f.signature(r); wrong != "" {
		if service(r) == "eks" {
			return jsonError(403, "InvalidSignatureException", wrong)
		}
		return xmlError(403, "SignatureDoesNotMatch", wrong)
	}

	switch service(r) {
	case "eks":
		return f.eks(r)
	case "ec2":
		return f.ec2API(r)
	case "sts":
		address := "https://" + host(r) + r.URL.RequestURI()
		if _, err := f.verify(address, r.Header.Get("x-k8s-aws-id")); err != nil {
			return xmlError(403, "SignatureDoesNotMatch", err.Error())
		}
		return f.whoami()
	}

	return answer{status: 404}
}

// eks answers DescribeCluster. Source:
// https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeCluster.html
func (f *Fake) eks(r *http.Request) answer {
	name, ok := strings.CutPrefix(r.URL.Path, "/clusters/")
	switch {
	case !ok || r.Method != http.MethodGet:
		return jsonError(404, "NotFoundException", "not found")
	case name != f.Cluster.Name || !strings.HasPrefix(host(r), "eks."+f.Machine.Region+"."):
		return jsonError(404, "ResourceNotFoundException", "No cluster found for name: "+name+".")
	}

	c := f.Cluster
	arn := "arn:aws:eks:" + f.Machine.Region + ":" + f.Machine.Account + ":cluster/" + c.Name
	network := map[string]any{"ipFamily": "ipv4", "serviceIpv4Cidr": c.ServiceCIDR}
	if strings.Contains(c.ServiceCIDR, ":") {
		network = map[string]any{"ipFamily": "ipv6", "serviceIpv6Cidr": c.ServiceCIDR}
	}

	body, _ := json.Marshal(map[string]any{"cluster": map[string]any{
		"name":                    c.Name,
		"arn":                     arn,
		"createdAt":               1767225600.0,
		"version":                 c.Version,
		"endpoint":                c.Server,
		"status":                  "ACTIVE",
		"platformVersion":         "eks.9",
		"kubernetesNetworkConfig": network,
		"certificateAuthority":    map[string]string{"data": base64.StdEncoding.EncodeToString(c.CA)},
	}})
	return answer{200, map[string]string{"Content-Type": "application/json"}, string(body)}
}

// ec2API answers those calls of EC2's query API that gpuadm makes.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html
func (f *Fake) ec2API(r *http.Request) answer {
	form := f.form(r)
	switch form.Get("Action") {
	case "DescribeInstances":
		return f.describeInstances(form.Get("InstanceId.1"))
	case "DescribeInstanceTypes":
		return describeInstanceTypes(form.Get("InstanceType.1"))
	}

	return xmlError(400, "InvalidAction", "The action is not valid for this web service.")
}

// describeInstances knows the machine alone.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html
func (f *Fake) describeInstances(id string) answer {
	m := f.Machine
	if id != m.ID {
		return xmlError(400, "InvalidInstanceID.NotFound", "The instance ID '"+id+"' does not exist")
	}

	const format = "<reservationSet><item><reservationId>r-0</reservationId><instancesSet><item>" +
		"<instanceId>%s</instanceId><instanceType>%s</instanceType><privateDnsName>%s</privateDnsName>" +
		"</item></instancesSet></item></reservationSet>"
	return xmlAnswer("DescribeInstances", fmt.Sprintf(format, m.ID, m.Type, m.Name))
}

// describeInstanceTypes gives each type the figures of p5.48xlarge.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_NetworkInfo.html
func describeInstanceTypes(name string) answer {
	const format = "<instanceTypeSet><item><instanceType>%s</instanceType><networkInfo>" +
		"<maximumNetworkInterfaces>64</maximumNetworkInterfaces>" +
		"<maximumNetworkCards>32</maximumNetworkCards>" +
		"<defaultNetworkCardIndex>0</defaultNetworkCardIndex>" +
		"<networkCards>" +
		"<item><networkCardIndex>0</networkCardIndex><maximumNetworkInterfaces>2</maximumNetworkInterfaces></item>" +
		"<item><networkCardIndex>1</networkCardIndex><maximumNetworkInterfaces>2</maximumNetworkInterfaces></item>" +
		"</networkCards>" +
		"<ipv4AddressesPerInterface>50</ipv4AddressesPerInterface>" +
		"</networkInfo></item></instanceTypeSet>"
	return xmlAnswer("DescribeInstanceTypes", fmt.Sprintf(format, name))
}

// whoami is STS's answer. Source:
// https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
func (f *Fake) whoami() answer {
	const format = "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><GetCallerIdentityResult>" +
		"<Arn>%s</Arn><UserId>AROA:%s</UserId><Account>%s</Account>" +
		"</GetCallerIdentityResult></GetCallerIdentityResponse>"
	body := fmt.Sprintf(format, f.arn(), f.Machine.ID, f.Machine.Account)

	return answer{200, map[string]string{"Content-Type": "text/xml"}, body}
}

// arn is who the machine's role is to STS: an instance's session is named by its id.
func (f *Fake) arn() string {
	return "arn:aws:sts::" + f.Machine.Account + ":assumed-role/" + f.Machine.Role + "/" + f.Machine.ID
}

func xmlHeader() map[string]string {
	return map[string]string{"Content-Type": "text/xml;charset=UTF-8"}
}

func xmlAnswer(call, inner string) answer {
	const format = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" +
		"<%[1]sResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>0</requestId>%[2]s</%[1]sResponse>"
	return answer{200, xmlHeader(), fmt.Sprintf(format, call, inner)}
}

func xmlError(status int, code, message string) answer {
	const format = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" +
		"<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>0</RequestID></Response>"
	var escaped strings.Builder
	xml.EscapeText(&escaped, []byte(message))

	return answer{status, xmlHeader(), fmt.Sprintf(format, code, escaped.String())}
}

// jsonError is an error of AWS's REST JSON services.
// Source:
// https://smithy.io/2.0/aws/protocols/aws-restjson1-protocol.html#operation-error-serialization
func jsonError(status int, code, message string) answer {
	body, _ := json.Marshal(map[string]string{"message": message})
	header := map[string]string{"Content-Type": "application/json", "X-Amzn-Errortype": code}

	return answer{status, header, string(body)}
}

// Review is a webhook for an API server's bearer tokens, as EKS's control plane has one: POST a
// TokenReview, and the webhook takes the token for the node of this machine if STS would take it.
// The API server gets it by --authentication-token-webhook-config-file.
// Source: https://github.com/kubernetes-sigs/aws-iam-authenticator, pkg/token and pkg/server
func (f *Fake) Review() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			APIVersion string `json:"apiVersion"`
			Spec       struct {
				Token string `json:"token"`
			} `json:"spec"`
		}
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&review); err != nil {
			http.Error(w, "cannot read the TokenReview", http.StatusBadRequest)
			return
		}

		status := f.review(review.Spec.Token)
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": review.APIVersion,
			"kind":       "TokenReview",
			"status":     status,
		})
	})
}

// review is a TokenReview's status.
func (f *Fake) review(token string) map[string]any {
	if err := f.CheckToken(token); err != nil {
		f.write("review: refused: " + err.Error())
		return map[string]any{"authenticated": false, "error": err.Error()}
	}

	f.write("review: node " + f.Machine.Name)
	return map[string]any{
		"authenticated": true,
		"user": map[string]any{
			"username": "system:node:" + f.Machine.Name,
			"uid":      "heptio-authenticator-aws:" + f.Machine.Account,
			"groups":   []string{"system:bootstrappers", "system:nodes"}, // as EKS's aws-auth maps nodes
		},
	}
}

// CheckToken says whether EKS's API server would take a token for this cluster now.
func (f *Fake) CheckToken(token string) error {
	packed, ok := strings.CutPrefix(token, "k8s-aws-v1.")
	if !ok {
		return fmt.Errorf("token is missing expected \"k8s-aws-v1.\" prefix")
	}
	plain, err := base64.RawURLEncoding.DecodeString(packed)
	if err != nil {
		return err
	}
	signed, err := f.verify(string(plain), f.Cluster.Name)
	if err != nil {
		return err
	}

	age := f.now().Sub(signed)
	if age.Abs() > 15*time.Minute {
		return fmt.Errorf("X-Amz-Date parameter is expired (%s ago)", age.Round(time.Second))
	}

	return nil
}
