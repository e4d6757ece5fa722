// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/stages"
)

// children returns the verbs of processes that gpuadm starts itself, or has apt start.
func (c *common) children() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   stages.AptHook,
			Short: "compare what apt is about to do with the plan; apt runs it",
			Args:  cobra.MaximumNArgs(1),
			RunE: func(cmd *cobra.Command, _ []string) error {
				// Its failure stops apt.
				return stages.VerifyApt(os.Getenv, cmd.InOrStdin(), cmd.OutOrStdout())
			},
		},
		{
			Use:   nvml.CUDAVerb,
			Short: "start CUDA in this process and print what it answers",
			Args:  cobra.MaximumNArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				return nvml.StartCUDA(strings.Join(args, ""))
			},
		},
		{
			Use:   nvml.DriverVerb,
			Short: "ask the driver in this process and hand its answer to the parent",
			Args:  cobra.MaximumNArgs(1),
			RunE:  c.sayDriver,
		},
		{
			Use:   local.FirstVerb,
			Short: "hold the PID namespace of an image's programs",
			Args:  cobra.MaximumNArgs(1),
			RunE:  func(*cobra.Command, []string) error { return local.First(c.stdin, os.Stdout) },
		},
	}
}

// sayDriver asks the driver, which may hang.
func (c *common) sayDriver(cmd *cobra.Command, _ []string) error {
	h, err := c.open("/", nil)
	if err != nil {
		return err
	}

	real, ok := h.(interface{ SayDriver(context.Context) error })
	if !ok {
		return errors.New("internal error: this machine is not a real one")
	}
	return real.SayDriver(cmd.Context())
}

func newToken(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "print a credential for kubelet (kubelet runs this)",
	}
	group(cmd)
	for _, p := range platform.Own() {
		cmd.AddCommand(newTokenFor(c, p))
	}
	return cmd
}

// newTokenFor prints the token by which a kubelet that gpuadm has set up logs in to a platform's
// cluster.
func newTokenFor(c *common, p platform.Platform) *cobra.Command {
	var cluster, region string
	cmd := &cobra.Command{
		Use:   p.Join.Method,
		Short: "print " + p.Join.Token,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := c.open(c.rootDir, nil)
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
	cmd.Flags().StringVar(&cluster, "cluster", "", "`NAME` of the cluster")
	cmd.Flags().StringVar(&region, "region", "", "its `REGION`; empty: the machine's own")
	return cmd
}

// credential prints a token in the format of client-go's exec plugins, in the API version that
// client-go asks for.
// Source: https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
func (c *common) credential(token string, expires time.Time) error {
	var asked struct{ APIVersion string }
	err := json.Unmarshal([]byte(c.getenv("KUBERNETES_EXEC_INFO")), &asked)
	if err != nil || asked.APIVersion == "" {
		asked.APIVersion = "client.authentication.k8s.io/v1"
	}

	status := map[string]any{"token": token, "expirationTimestamp": expires.UTC().Format(time.RFC3339)}
	return json.NewEncoder(c.stdout).Encode(map[string]any{
		"kind":       "ExecCredential",
		"apiVersion": asked.APIVersion,
		"spec":       map[string]any{},
		"status":     status,
	})
}
