package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
)

func newTenantCmd() *cobra.Command {
	return group("tenant", "Teams: guarantee, weight and limits", "  sluice tenant apply -f examples/tenant.yaml\n  sluice tenant list",
		applyCmd(kindTenant, "Set tenants from a file", "  sluice tenant apply -f examples/tenant.yaml",
			"Sets every tenant in the file: name, guaranteeGpus, limitGpus, weight, and the limits of its keys\n(requestsPerMin, tokensPerMin, concurrent, tokensPerDay, tokensPerMonth)."),
		newTenantListCmd(), newTenantLimitCmd(),
		deleteCmd("delete NAME", "Delete a tenant that owns nothing, and its keys", "  sluice tenant delete research", "tenants", "a tenant's name"))
}

func newTenantListCmd() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List tenants with what they hold", Example: "  sluice tenant list", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var tenants []admin.TenantStatus
		if err := fetch(c, conn, out, apiPath("tenants"), &tenants); err != nil {
			return err
		}
		return out.print(c, tenants, func(t *table) {
			t.row("TENANT", "GUARANTEE", "LIMIT", "WEIGHT", "MODELS", "JOBS", "SERVING GPUS", "TRAINING GPUS", "LIMITS OF KEYS")
			for _, x := range tenants {
				limit := "none"
				if x.LimitGPUs > 0 {
					limit = fmt.Sprint(x.LimitGPUs)
				}
				t.row(x.Name, x.GuaranteeGPUs, limit, x.Weight, x.Models, x.Jobs, x.ServeGPU, x.TrainGPU, limitsText(&x.Limits))
			}
		})
	}
	return c
}

func newKeyCmd() *cobra.Command {
	return group("key", "API keys of tenants", "  sluice key create --tenant research\n  sluice key list",
		newKeyCreateCmd(), newKeyListCmd(), newKeyLimitCmd(),
		deleteCmd("delete ID", "Refuse a key from now on", "  sluice key delete key-1a2b3c4d", "keys", "a key's id, key-…"))
}

func newKeyCreateCmd() *cobra.Command {
	c := &cobra.Command{Use: "create", Short: "Make an API key; its secret is shown once", Args: argCount(0, ""),
		Example: "  sluice key create --tenant research\n  sluice key create --tenant web --model chat --rpm 600 --tokens-per-day 1000000 --class interactive"}
	var req admin.KeyRequest
	c.Flags().StringVar(&req.Tenant, "tenant", "", "tenant whose key it is (default \"default\")")
	c.Flags().StringArrayVar(&req.Models, "model", nil, "model it may use; may be given again (default: all)")
	c.Flags().StringVar(&req.ClassCeiling, "class", "", "most urgent class it may use: interactive, standard or batch (default interactive)")
	addLimitFlags(c, &req.Limits)
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var key admin.NewKey
		if err := create(c, conn, out, apiPath("keys"), &req, &key); err != nil {
			return err
		}
		return out.print(c, key, func(t *table) {
			t.row("id:", key.ID)
			t.row("tenant:", key.Tenant)
			t.row("secret:", key.Secret)
			t.text("Keep the secret now: it is not stored and cannot be shown again.")
		})
	}
	return c
}

// create posts a document and gets what was made.
func create(c *cobra.Command, conn *clientFlags, out *output, path string, in, made any) error {
	if err := out.check(c); err != nil {
		return err
	}
	cl, err := conn.open()
	if err != nil {
		return err
	}
	return cl.call(c.Context(), http.MethodPost, path, in, made)
}

func newKeyListCmd() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List API keys, without their secrets", Example: "  sluice key list", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var keys []admin.Key
		if err := fetch(c, conn, out, apiPath("keys"), &keys); err != nil {
			return err
		}
		return out.print(c, keys, func(t *table) {
			t.row("KEY", "TENANT", "MODELS", "CLASS", "LIMITS")
			for _, k := range keys {
				models := "all"
				if len(k.Models) > 0 {
					models = list(k.Models)
				}
				t.row(k.ID, k.Tenant, models, k.ClassCeiling, limitsText(&k.Limits))
			}
		})
	}
	return c
}

func newTokenCmd() *cobra.Command {
	return group("token", "Tokens for agents and operators", "  sluice token create\n  sluice token create --role operator",
		newTokenCreateCmd(), newTokenListCmd(),
		deleteCmd("delete ID", "Refuse a token from now on", "  sluice token delete Yw3kPq0z", "tokens", "a token's id"))
}

func newTokenCreateCmd() *cobra.Command {
	c := &cobra.Command{Use: "create", Short: "Make a token; its text is shown once", Args: argCount(0, ""),
		Long:    "A token of role agent lets one or more agents join; one of role operator gives all rights\non the TCP control port. Both pin the server's authority.",
		Example: "  sluice token create\n  sluice token create --role operator -o json"}
	var req admin.TokenRequest
	role := c.Flags().String("role", string(admin.RoleAgent), "agent or operator")
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		req.Role = admin.Role(*role)
		var token admin.NewToken
		if err := create(c, conn, out, apiPath("tokens"), &req, &token); err != nil {
			return err
		}
		return out.print(c, token, func(t *table) {
			t.row("id:", token.ID)
			t.row("role:", token.Role)
			t.row("token:", token.Token)
			t.text("Keep the token now: it is not stored and cannot be shown again.")
		})
	}
	return c
}

func newTokenListCmd() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List tokens, without their text", Example: "  sluice token list", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var tokens []admin.TokenStatus
		if err := fetch(c, conn, out, apiPath("tokens"), &tokens); err != nil {
			return err
		}
		return out.print(c, tokens, func(t *table) {
			t.row("TOKEN", "ROLE")
			for _, x := range tokens {
				t.row(x.ID, x.Role)
			}
		})
	}
	return c
}
