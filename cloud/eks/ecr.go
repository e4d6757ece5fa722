// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"encoding/json"
	"path"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// registries returns patterns for ECR's hosts, one for each partition of AWS: each may have images
// that only the machine's role may pull.
// Source: https://github.com/awslabs/amazon-eks-ami,
// nodeadm/internal/kubelet/image-credential-provider.go.
func registries() []string {
	return []string{
		"*.dkr.ecr.*.amazonaws.com", "*.dkr-ecr.*.on.aws",
		"*.dkr.ecr.*.amazonaws.com.cn", "*.dkr-ecr.*.on.amazonwebservices.com.cn",
		"*.dkr.ecr-fips.*.amazonaws.com", "*.dkr-ecr-fips.*.on.aws",
		"*.dkr.ecr.*.c2s.ic.gov", "*.dkr.ecr.*.sc2s.sgov.gov",
		"*.dkr.ecr.*.cloud.adc-e.uk", "*.dkr.ecr.*.csp.hci.ic.gov",
		"*.dkr.ecr.*.amazonaws.eu",
		"public.ecr.aws", "ecr-public.aws.com",
	}
}

// needsECR refuses a machine without the plugin before it joins: EKS has the images of the CNI and
// of kube-proxy in ECR, so the node would never become ready.
// Sources: https://github.com/awslabs/amazon-eks-ami,
// nodeadm/internal/kubelet/image-credential-provider.go, which fails without it, and
// templates/al2023/provisioners/install-worker.sh;
// https://github.com/kubernetes/cloud-provider-aws, cmd/ecr-credential-provider.
func needsECR(f facts.Facts) error {
	if f.Cloud.ECRPlugin || f.Kubelet.Joined {
		return nil
	}
	return &trouble.Error{
		What:    "cannot join EKS: " + instance.ECRPlugin + " is not there",
		Because: []string{"it is kubelet's plugin that logs in to ECR, where EKS has the images of the CNI and of kube-proxy: without them the node never becomes ready"},
		Try: []string{
			"put it there, with mode 0755: AWS has it beside kubelet, as s3://amazon-eks/VERSION/DATE/bin/linux/ARCH/ecr-credential-provider",
			"or build it from cmd/ecr-credential-provider of https://github.com/kubernetes/cloud-provider-aws",
		},
	}
}

// ecr wants kubelet's plugin for ECR configured for ECR's hosts, if the plugin is installed. An
// operator's own configuration stays: it may name other plugins too.
func ecr(f facts.Facts) []converge.Want {
	if !f.Cloud.ECRPlugin {
		return nil
	}
	edit := func(found []byte) ([]byte, error) {
		if found != nil {
			return found, nil
		}
		return ecrConfig()
	}

	file := things.NewFile(instance.ECRConfig, nil)
	wants := things.Folders(path.Dir(instance.ECRConfig), "holds kubelet's plugin for ECR")
	return append(wants, things.Edited(file, edit, "images of ECR are pulled as the machine's role"))
}

// ecrConfig returns the configuration of kubelet's plugin for ECR.
func ecrConfig() ([]byte, error) {
	provider := map[string]any{
		"name":                 path.Base(instance.ECRPlugin),
		"apiVersion":           "credentialprovider.kubelet.k8s.io/v1",
		"defaultCacheDuration": "12h0m0s", // ECR's tokens are valid for 12 hours
		"matchImages":          registries(),
	}
	text, err := json.MarshalIndent(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1",
		"kind":       "CredentialProviderConfig",
		"providers":  []any{provider},
	}, "", "  ")
	return append(text, '\n'), err
}

// ecrFlags returns kubelet's flags for the plugin.
func ecrFlags(f facts.Facts) []string {
	if f.Files[instance.ECRConfig] == nil && !f.Cloud.ECRPlugin {
		return nil
	}
	return []string{
		"--image-credential-provider-config=" + instance.ECRConfig,
		"--image-credential-provider-bin-dir=" + path.Dir(instance.ECRConfig),
	}
}
