// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/instance"
)

func newToken(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "print a credential for kubelet (kubelet runs this)",
	}
	group(cmd)
	var cluster, region string
	eks := &cobra.Command{
		Use:   "eks",
		Short: "print a token of the machine's role for an EKS cluster",
		Long: `Eks prints an ExecCredential with a token for an EKS cluster's API server. The token
names the machine's IAM role, and is signed with the role's keys from the metadata
service. A kubelet that gpuadm has joined to EKS runs it; it needs no AWS CLI.

The output is a secret, valid for 15 minutes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir)
			if err != nil {
				return err
			}
			token, expires, err := instance.Token(cmd.Context(), h, cluster, region)
			if err != nil {
				return err
			}
			return c.credential(token, expires)
		},
	}
	eks.Flags().StringVar(&cluster, "cluster", "", "`NAME` of the cluster")
	eks.Flags().StringVar(&region, "region", "", "its `REGION`; empty: the machine's own")
	cmd.AddCommand(eks)
	return cmd
}

// credential prints a token as client-go wants it from its exec plugins, in the version that it asks for.
// Source: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
func (c *common) credential(token string, expires time.Time) error {
	var asked struct{ APIVersion string }
	if err := json.Unmarshal([]byte(c.getenv("KUBERNETES_EXEC_INFO")), &asked); err != nil || asked.APIVersion == "" {
		asked.APIVersion = "client.authentication.k8s.io/v1"
	}
	return json.NewEncoder(c.stdout).Encode(map[string]any{
		"kind": "ExecCredential", "apiVersion": asked.APIVersion, "spec": map[string]any{},
		"status": map[string]any{"token": token, "expirationTimestamp": expires.UTC().Format(time.RFC3339)},
	})
}
